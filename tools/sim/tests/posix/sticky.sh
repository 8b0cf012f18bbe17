# The sticky bit: who removes and renames what, hard links included.
mkdir t; chmod 1777 t
as 1001 touch t/a t/b t/c; as 1001 mkdir t/dir
as 1002 rm -f t/a; as 1002 mv t/a t/z; as 1002 rmdir t/dir; as 1002 mv t/dir t/other
as 1002 touch t/mine; as 1002 mv -f t/mine t/a
for i in 1 2 3 4 5 6 7 8; do
    as 1001 touch "t/f$i"; as 1001 ln "t/f$i" "t/g$i"
    as 1002 mv "t/g$i" t/stolen
    as 1001 mv "t/g$i" "t/h$i" && as 1001 rm "t/f$i"
    as 1001 touch "t/n$i"; as 1002 mv -f t/mine "t/h$i"
    as 1001 mv -f "t/n$i" "t/h$i"
done
ls t
as 1001 mv t/dir t/moved; as 1001 rmdir t/moved; as 1001 rm t/a
chown 1002 t; as 1002 rm t/b
chmod 777 t; as 1003 rm t/c
ls t | wc -l
