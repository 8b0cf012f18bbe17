# The first process of a run's own world (inside.rs). When it ends, the kernel ends all others in
# it and takes its mounts and its network away; the last of a file system frees its loop device.
# Arguments: the program, and its own.
# libfaketime leaves its shared memory behind when a process is killed.
mount -t proc proc /proc && mount -t tmpfs tmpfs /dev/shm && ip link set lo up || exit 1
"$0" "$@" &
run=$!
# The program outside is gone.
trap 'kill -9 $run' TERM
wait $run
code=$?
# A process that waits for a frozen file system cannot end.
for point in $(sed -n 's|^/dev/loop[0-9]* \([^ ]*/saker-test-[^ ]*\) .*|\1|p' /proc/mounts); do
    fsfreeze -u "$point" 2>/dev/null
done
exit $code
