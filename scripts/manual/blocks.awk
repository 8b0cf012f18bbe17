# The blocks of a Markdown file that are marked `sh`, each on the lines where it is: the shell then
# names the manual's own lines. A block without a mark is an error: nobody would run it.
/^```/ && inside { inside = ""; print ""; next }
/^```$/ { print FILENAME ":" NR ": a block without a language" > "/dev/stderr"; failed = 1 }
/^```/ { inside = substr($0, 4); if (inside == "") inside = "none"; print ""; next }
{ print inside == "sh" ? $0 : "" }
END { exit failed }
