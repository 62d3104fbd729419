# bash completion for ctl. Load it with: source <(ctl completion bash)
_ctl() {
	local line before=${COMP_LINE:0:COMP_POINT} words word
	# Not COMP_WORDS: bash splits those at colons and equal signs.
	read -ra words <<<"$before"
	case $before in *[[:space:]]) words+=("") ;; esac
	word=${words[-1]}
	COMPREPLY=()
	while IFS= read -r line; do
		if [[ $line == :files ]]; then
			compopt -o default
		else
			line=${line%%$'\t'*}
			COMPREPLY+=("${line#"${word%"${COMP_WORDS[COMP_CWORD]}"}"}")
		fi
	done < <("${words[0]}" __complete "${words[@]:1}" 2>/dev/null)
}
complete -F _ctl ctl
