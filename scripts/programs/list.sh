# shellcheck shell=bash disable=SC2016 # $ROOT and $OUT are of the programs.
# What scripts/programs.sh runs. What must differ is left out: sizes of directories.

check 'ls -lR' '
    cd $ROOT && ls -lR --time-style=full-iso include images |
        sed -E "/^total /d; s/ +/ /g; s/^(d[^ ]+ [^ ]+ [^ ]+ [^ ]+) [0-9]+ /\1 /"'
check 'cp -a' '
    cp -a $ROOT/include $ROOT/images $OUT && cd $OUT &&
    find . ! -type d -printf "%P %y %m %U %G %n %s %T@ %l\n" | sort &&
    find * -type d -printf "%p %m %U %G %n %T@\n" | sort &&
    find . -type f -print0 | sort -z | xargs -0 sha256sum'
check 'find | xargs sha256sum' '
    cd $ROOT && find include images -type f -print0 | sort -z | xargs -0 sha256sum'
check 'tar c' 'cd $ROOT && tar c --sort=name include images | sha256sum'
check 'grep -r' '
    cd $ROOT && grep -rn "define.*MAX" include | sort && grep -rc JFIF images | sort | sha256sum'
check 'Pillow, NumPy' '$PROGRAMS/pixels.py'
check 'git log' 'cd $ROOT/repository && git -c safe.directory="*" log --stat'
if have torchvision; then
    check 'PyTorch DataLoader' '$PROGRAMS/loader.py'
else
    echo "note: there is no python3-torchvision: PyTorch is not tested"
fi

# The rest, as far as it is installed.
may() {
    if command -v "$1" >/dev/null; then check "${@:2}"; else echo "skip $2: there is no $1"; fi
}

may git 'git' '
    cd $ROOT/repository && git -c safe.directory="*" fsck --full 2>/dev/null &&
    git -c safe.directory="*" show --stat HEAD~1 &&
    git clone -q -c safe.directory="*" --no-local $ROOT/repository $OUT/clone && ls $OUT/clone'
may rsync 'rsync' '
    rsync -aH $ROOT/images $OUT && cd $OUT && find images -printf "%p %y %m %n %T@\n" | sort &&
    rsync -anic --delete $ROOT/images $OUT && find . -type f | sort | xargs sha256sum'
may diff 'diff -r' 'diff -r --no-dereference $ROOT $TREE && echo same'
may sqlite3 'sqlite3' '
    sqlite3 -readonly $ROOT/records/labels.db \
        "select sum(label), count(*) from labels; pragma integrity_check"'
may jq 'jq' 'jq -c ".classes | add" $ROOT/records/labels.json'
may perl 'perl' '
    perl -MFile::Find -e "find(sub { \$n++ if -f; \$s += -s _ if -f _ }, @ARGV); print qq(\$n \$s\n)" \
        $ROOT/include'
may gcc 'gcc' '
    cd $ROOT && echo "#include <linux/fuse.h>" |
        gcc -E -P -nostdinc -isystem include -isystem include/x86_64-linux-gnu - &&
    gcc -o $OUT/hello records/hello.c && $OUT/hello'
may make 'make' 'make -C $ROOT/records OUT=$OUT && $OUT/hello'
may vim 'vim' '
    vim -es -u NONE -i NONE -n -c "%s/puts/printf/" -c "w! $OUT/new.c" -c "q!" \
        $ROOT/records/hello.c
    cat $OUT/new.c'
may less 'less' 'less $ROOT/include/stdio.h | cat'
may file 'file' 'cd $ROOT && file records/* images/val/class00/*'
may zip 'zip, unzip' '
    cd $ROOT && zip -qr $OUT/images.zip images/val && cd $OUT && unzip -q images.zip &&
    find images -type f | sort | xargs sha256sum'
check 'Python tarfile' 'python3 -c "import os, tarfile
for item in tarfile.open(os.environ[\"ROOT\"] + \"/records/shard.tar\", \"r|\"):
    print(item.name, item.size)"'
may java 'java' 'java $PROGRAMS/Sums.java $ROOT/images'
may node 'Node.js' 'node $PROGRAMS/files.js'
