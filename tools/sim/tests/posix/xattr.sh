# Extended attributes: namespaces, and who may do what.
touch f; mkdir d; ln -s f l; mkfifo p; chmod 644 f; chmod 755 d
setfattr -n user.a -v 1 f; setfattr -n user.b -v '' f; setfattr -n user.a -v 22 f; getfattr -d f
getfattr -n user.none f; setfattr -x user.none f; setfattr -n user. -v x f; setfattr -n a -v x f
setfattr -n other.a -v x f; setfattr -n system.x -v y f
setfattr -n "user.$(printf '%0250d' 0)" -v x f && getfattr f | wc -l
setfattr -n "user.$(printf '%0251d' 0)" -v x f
setfattr -n trusted.t -v x f; setfattr -n security.s -v x f; getfattr -d -m - f | sort
as 1001 getfattr -d -m - f | sort
as 1001 getfattr -n trusted.t f; as 1001 getfattr -n security.s f
as 1001 setfattr -n user.c -v x f; as 1001 setfattr -n trusted.c -v x f
as 1001 setfattr -n security.c -v x f; as 1001 setfattr -x security.s f; as 1001 setfattr -x user.a f
chmod 600 f; as 1001 getfattr -n user.a f; as 1001 getfattr -d -m - f | sort
setfattr -h -n user.a -v x l; setfattr -h -n trusted.a -v x l; getfattr -h -d -m - l
setfattr -n user.a -v x p; getfattr -n user.a p
chmod 1777 d; as 1001 setfattr -n user.a -v x d; setfattr -n user.a -v x d; as 1001 getfattr -d d
ln f second; setfattr -n user.shared -v yes second; getfattr -n user.shared --only-values f; echo
mv f third; getfattr -n user.shared --only-values third; echo
cp -a third copy; getfattr -d -m user copy | tail -n +2
