# Link counts and times of directories.
# changes COMMAND…: which times of d the command changes.
changes() {
    before=$(stat -c '%.Y %.Z' d); "$@"; after=$(stat -c '%.Y %.Z' d)
    [ "${before% *}" = "${after% *}" ] && printf '%s' 'same ' || printf '%s' 'mtime '
    [ "${before#* }" = "${after#* }" ] && printf '%s' 'same ' || printf '%s' 'ctime '
    stat -c '%h' d
}
mkdir d e
changes mkdir d/one; changes touch d/f; changes touch d/f; changes ln d/f d/g; changes ln -s x d/s
changes mv d/g d/h; changes mv d/one d/two; changes mv d/two e/; changes mv e/two d/; changes mv d/h e/
changes rm d/f; changes rmdir d/two; changes chmod 700 d; changes chown 1001 d; changes mkfifo d/p
changes touch -d 2001-01-01 d; changes sh -c 'echo x > d/n'; changes sh -c 'echo y >> d/n'
changes chmod 600 d/n; changes setfattr -n user.x -v y d; changes ls d; changes setfacl -m u:1001:rx d
changes touch -d 2002-02-02 d; stat -c %y d; chmod 711 d; stat -c '%y %a' d; chown 1002:1002 d; stat -c %y d
touch -a -d 2003-03-03 d; stat -c '%x %y' d
changes mkdir -p d/a/b/c; stat -c %h d/a d/a/b d/a/b/c
mkdir d/x; touch d/x/f; changes mv -T d/x d/a/b/c; changes rm -r d/a; stat -c %h d
mkdir -p d/y z; changes mv -T z d/y; stat -c %h d; stat -c %h .
rmdir d; rmdir d/y/; rmdir d/none; mkdir d; mkdir d/none/x; mv d d/y; mv d/y d; mv d e/../d/y/z
