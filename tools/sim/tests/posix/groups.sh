# Supplementary groups, more than the sixteen of old protocols.
groups=$(seq -s , 3001 3064)
touch f; chown 0:3064 f; chmod 640 f; echo secret > f
mkdir d; chown 0:3050 d; chmod 770 d
as_groups 1001 "$groups" cat f
as_groups 1001 "$groups" touch d/x && stat -c '%u %g' d/x
as_groups 1001 "$groups" ls d
as_groups 1001 3063 cat f
as 1001 cat f
as 1001 ls d
as_groups 1001 "$groups" chgrp 3017 d/x && stat -c %g d/x
as_groups 1001 "$groups" chgrp 3999 d/x; stat -c %g d/x
setfacl -m g:3033:rw f
as_groups 1001 3033 sh -c 'echo more >> f'; cat f
