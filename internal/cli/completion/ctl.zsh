#compdef ctl
# zsh completion for ctl. Load it with: source <(ctl completion zsh)
_ctl() {
	local line
	local -a names
	while IFS= read -r line; do
		if [[ $line == :files ]]; then
			_files
		else
			names+=("${${line%%$'\t'*}//:/\\:}:${line#*$'\t'}")
		fi
	done < <("${words[1]}" __complete "${(@)words[2,CURRENT]}" 2>/dev/null)
	(( $#names )) && _describe ctl names
}
if [[ $funcstack[1] == _ctl ]]; then
	_ctl "$@"
else
	compdef _ctl ctl
fi
