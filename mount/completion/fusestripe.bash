# Loaded by bash-completion when `fusestripe` is first completed.
eval "$(_FUSESTRIPE_COMPLETE=bash_source fusestripe 2>/dev/null)"
