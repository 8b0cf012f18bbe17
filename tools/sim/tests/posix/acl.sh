# POSIX ACLs: acl(5), chmod, inheritance, and copies by cp and rsync.
umask 022
touch f
setfacl -m u:1001:rw,g:2000:r f
getfacl -cn f
stat -c '%a %A' f
chmod 604 f
getfacl -cn f
chmod 664 f
setfacl -m m::r f
getfacl -cn f
echo content > f
for user in 1001 1002 1003; do
    as $user cat f
    as $user sh -c 'echo more >> f'
done
setfacl -m u:1003:- f
as 1003 cat f
as_groups 1004 2000 cat f
as_groups 1004 2000 sh -c 'echo x > f'
# A list that says no more than the mode goes.
setfacl -b f
getfattr -d -m - f
setfacl -n -m u::rw,g::r,o::- f
getfattr -d -m - f; stat -c %a f
# Only the owner may change it.
chown 1001:1001 f
as 1002 setfacl -m u:1002:rwx f
as 1001 setfacl -m u:1002:rwx f
as 1002 test -x f && echo executable
getfacl -n f
# Set-group-id does not survive somebody who is not of the group.
chown 1001:2000 f; chmod 2775 f
as 1001 setfacl -m u:1003:r f
stat -c %a f
# A mask of nothing: Linux looks at the bits of others then.
chmod 705 f
as 1003 test -r f && echo readable
# Directories: search and change.
mkdir d; echo inside > d/file; chmod 700 d
setfacl -m u:1001:x d
as 1001 cat d/file
as 1001 ls d
as 1001 touch d/new
setfacl -m u:1001:rwx d
as 1001 ls d
as 1001 touch d/new && ls -n d | awk 'NR > 1 {print $1, $3, $4, $NF}'
setfacl -m u:1001:rx d
as 1001 rm d/new
chmod 750 d
getfacl -cn d
stat -c '%a %h' d
# Default lists.
setfacl -m d:u:1002:rwx,d:g:2000:rx,d:o::- d
getfacl -cn d
umask 077
touch d/made; mkdir d/sub; mkfifo d/pipe; ln -s file d/link; mkdir -m 711 d/narrow
for each in made sub pipe narrow; do getfacl -cn d/$each; done
stat -c '%a %A %n' d/made d/sub d/pipe d/link d/narrow
touch d/sub/below; getfacl -cn d/sub/below
umask 022
setfacl -k d/sub
mkdir d/sub/plain; stat -c %a d/sub/plain; getfacl -cn d/sub/plain
setfacl -n -m d:u::rwx,d:g::rx,d:o::rx d/sub
umask 077; touch d/sub/wide; umask 022; stat -c %a d/sub/wide; getfacl -cn d/sub/wide
# Where there can be none.
setfacl -m d:u:1001:r f
setfattr -n system.posix_acl_access -v nonsense f
ln -s f s; getfattr -h -n system.posix_acl_access s
getfattr -n system.posix_acl_access d/file
# Copies.
cp -a d copy
(cd d && getfacl -Rn .) > list; (cd copy && getfacl -Rn .) > list.copy; cmp list list.copy && wc -l < list
rsync -aAX d/ again/
(cd again && getfacl -Rn .) > list.again; cmp list list.again && echo same
cp d/made plain; getfacl -cn plain
cp --preserve=mode d/made moded; getfacl -cn moded
mv d renamed; as 1002 ls renamed
ln renamed/made linked; getfacl -cn linked
setfacl -m u:1004:r renamed/made; getfacl -cn linked
