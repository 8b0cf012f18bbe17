# FIFOs and devices.
umask 022
mknod p p; mknod c c 1 3; mknod b b 7 0; mkfifo -m 600 q
stat -c '%A %t:%T %h %s %n' p c b q
mknod big c 511 1048575; stat -c '%t:%T' big
chmod 777 .; as 1001 mknod no c 1 3; as 1001 mkfifo yes && stat -c '%A %u' yes
(echo through > p) & cat p; wait
mv p r; ln r s; stat -c '%A %h' s; rm r; stat -c '%A %h' s
truncate -s 5 s; setfattr -n user.x -v y s; setfattr -n trusted.x -v y s && getfattr -d -m - s
find . -type p | sort; find . -type c | sort; find . -type b
chmod 640 b; chown 1001:1002 b; stat -c '%A %u %g' b
cp -a s copy; stat -c %A copy; rm -r ./*
