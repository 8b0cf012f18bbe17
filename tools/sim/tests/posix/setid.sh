# Set-user-id and set-group-id: inheritance, and who loses them.
umask 022
mkdir d; chown 0:2000 d; chmod 2777 d
as 1001 touch d/f; as 1001 mkdir d/sub; as 1001 mkfifo d/p; as 1001 ln -s f d/l
stat -c '%a %u %g %n' d/*
as 1001 install -m 2755 /bin/true d/foreign; stat -c '%a %g' d/foreign
as_groups 1001 2000 install -m 2755 /bin/true d/member; stat -c '%a %g' d/member
# chmod by somebody who is not of the group.
touch f; chown 1001:2000 f
as 1001 chmod 2755 f; stat -c %a f
as_groups 1001 2000 chmod 2755 f; stat -c %a f
as 1001 chmod 755 f; stat -c %a f
mkdir g; chown 1001:2000 g
as 1001 chmod 2755 g; stat -c %a g
as_groups 1001 2000 chmod 2755 g; stat -c %a g
# Writes and truncation, by root and by others.
for mode in 6777 6767 4777 2777 2767; do
    echo x > w; chmod $mode w; echo y >> w; stat -c 'root %a' w
    chmod $mode w; as 1002 sh -c 'echo y >> w'; stat -c 'write %a' w
    chmod $mode w; as 1002 truncate -s 1 w; stat -c 'truncate %a' w
    chmod $mode w; as 1002 sh -c ': > w'; stat -c 'open %a' w
    chown 1002:1002 w; chmod $mode w; chown 1003:1003 w; stat -c 'root gives away %a' w
    chown 1002:1002 w; chmod $mode w; as_groups 1002 2000 chgrp 2000 w; stat -c 'chgrp %a' w
    chown 1002:2000 w; chmod $mode w; as 1002 sh -c 'echo z >> w'; stat -c 'own write %a' w
    rm w
done
# Directories keep theirs.
mkdir h; chmod 6755 h; chown 1001:1001 h; stat -c %a h
as 1001 touch h/x; stat -c '%a %g' h h/x
chmod 755 h; stat -c %a h; chmod 0755 h; stat -c %a h; chmod u-s,g-s h; stat -c %a h
