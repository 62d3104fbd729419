# fish completion for ctl. Load it with: ctl completion fish | source
function __ctl_complete
	set -l words (commandline -opc)
	set -l word (commandline -ct)
	for line in ($words[1] __complete $words[2..-1] "$word" 2>/dev/null)
		if test "$line" = :files
			__fish_complete_path "$word"
		else
			echo $line
		end
	end
end
complete -c ctl -f -a '(__ctl_complete)'
