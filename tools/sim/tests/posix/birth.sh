# The time of birth, which nothing changes.
# The kernel stamps files by its last tick, up to 10 ms before what date says: that is past by then.
start=$(date +%s); sleep 0.02
touch f; mkdir d; ln -s f l; mkfifo p
# born NAME: is its birth after the start, and what it was at first?
born() {
    now=$(stat -c %W "$1"); [ "$now" -ge "$start" ] && [ "$now" -le "$(date +%s)" ] && echo "$1 is born"
}
for each in f d l p; do born $each; eval "first_$each=\$(stat -c %w $each)"; done
sleep 0.1
echo data > f; chmod 600 f; touch -d 2001-01-01 f d; ln f second; mv f d/f; touch d/x; mv d e
[ "$(stat -c %w e/f)" = "$first_f" ] && echo "f as it was"
[ "$(stat -c %w second)" = "$first_f" ] && echo "its other name"
[ "$(stat -c %w e)" = "$first_d" ] && echo "d as it was"
[ "$(stat -c %w l)" = "$first_l" ] && echo "l as it was"
truncate -s 0 second; [ "$(stat -c %w e/f)" = "$first_f" ] && echo "f still"
cp -a e copy; [ "$(stat -c %w copy/f)" = "$first_f" ] || echo "a copy is born later"
stat -c %Y copy/f > /dev/null && echo done
