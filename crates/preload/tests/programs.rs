//! Programs of every day, on a tree and on datasets of it: they must say the same.

#![allow(clippy::disallowed_methods, clippy::unwrap_used, reason = "tests")]

mod support;

use support::{Fixture, User, is_root};

/// Scripts of bash. What must differ is left out: devices, numbers of inodes, times of changes.
const SCRIPTS: &[&str] = &[
    "cd $ROOT && pwd | wc -l && ls -lR --time-style=full-iso . | grep -v ^total | \
     sed 's/^d\\(.*[a-z]\\) *[0-9]* 2/d\\1 2/'",
    "cd $ROOT && ls -la --color=always many dir closed 2>&1 | grep -v '\\.\\.'",
    "cd $ROOT && find . ! -path './closed*' -type f -print0 | sort -z | xargs -0 sha256sum 2>&1",
    "cd $ROOT && find -L . -name inner 2>&1 | sort; find . -perm 640 -newermt 1990-01-01",
    "stat -c '%n %f %h %u %g %F %Y %s %b %B' $ROOT/plain $ROOT/link $ROOT/absolute | sed s:$ROOT::",
    "cd $ROOT && tar c --sort=name --exclude=./closed . 2>&1 | sha256sum",
    "cd $ROOT && tar c --sort=name --xattrs plain large link pipe | tar tv",
    "cp -a $ROOT $OUT/$$ 2>&1 | sed s:$ROOT:: | sort; cd $OUT/$$ && ls -lR --time-style=full-iso; \
     find . -type f | sort | xargs -d '\\n' sha256sum 2>&1; chmod -R u+w .; rm -rf $OUT/$$",
    "cp --reflink=auto --sparse=always $ROOT/zeros $ROOT/text $OUT && cd $OUT && sha256sum zeros text",
    "cd $ROOT && grep -rn 'line 29[0-9]' text small dir 2>&1; grep -rl second . 2>&1 | sort",
    "cat < $ROOT/small; cat $ROOT/text | tail -n 2; head -n 3 < $ROOT/text; wc -c < $ROOT/large",
    "while read -r line; do echo \"$line\"; done < $ROOT/small; mapfile -t all < $ROOT/text; \
     echo ${#all[@]}",
    "(read -r a; cat) < $ROOT/small; { read -r a; read -r b; echo $b; } < $ROOT/small",
    "{ head -n 1; echo --; cat; } < $ROOT/small; exec < $ROOT/text; head -n 2; sed -n 1p; wc -l",
    "exec 7< $ROOT/small; read -u 7 a; cat <&7",
    "cd $ROOT && du -s --apparent-size many; du -a dir | sort; du -ab many | grep -v 'many$' | sort",
    "cd $ROOT && . ./program a; ./program b c; sh program d; cd dir && ../program e",
    "cd $ROOT/dir && cat ../small ../dir/sub/deep/down; cd sub/deep && pwd | sed s:$ROOT:: \
     && cd .. && pwd -P | sed s:$ROOT:: && cd ../.. && cat small && (cd / && ls -d etc)",
    "cd $ROOT && echo m*/000? */inn* [st]*; echo dir/**; test -e plain && test ! -w plain; echo $?",
    "cd $ROOT && touch plain new 2>&1; echo x 2>&1 > new; rm -f plain 2>&1; mkdir new 2>&1; \
     mv plain new 2>&1; ln -s a new 2>&1; chmod 200 plain 2>&1; echo $?",
    "cd $ROOT && readlink -f through/up to-dir absolute dir/.. | sed s:$ROOT::; realpath -e loop 2>&1",
    "diff -r $ROOT/dir/sub $HERE/tree/dir/sub && cmp $ROOT/large $HERE/tree/large && echo same",
    "cd $ROOT && sort text | sha256sum; awk 'END { print NR }' text; sed -n 2p small; \
     xxd small | head -n 2; od -c small | head -n 2; dd if=plain bs=1000 skip=99 2>/dev/null | wc -c",
    "cd $ROOT && tail -c 5 large | sha256sum; split -n 3 text $OUT/part. && cat $OUT/part.* | sha256sum",
    "rsync -a --exclude=/closed --exclude=/secret --exclude=/plain --exclude=/hard $ROOT/ $OUT/r$$ 2>&1 \
     | sed s:$ROOT:: | sort; \
     cd $OUT/r$$ && find . -type f | sort | xargs -d '\\n' sha256sum; chmod -R u+w .; rm -rf $OUT/r$$",
    "cd $ROOT && getfattr -d plain small 2>&1",
    "cd $ROOT && perl -e 'opendir(D, \"many\"); print scalar(readdir(D), sort readdir(D)); \
     open(F, \"<text\"); while (<F>) { $n++ } print $n, -s \"large\"'",
    "cd $ROOT && gzip -c text | gunzip | cmp - text && zip -q - dir/inner 2>&1 | wc -c",
];

/// Programs of Python.
const PYTHON: &[&str] = &[
    "for d, ds, fs in os.walk('.'):\n  ds.sort()\n  print(d, ds, sorted(fs), len(fs))",
    "import shutil\nshutil.copytree('dir', out + '/c', symlinks=True)\n\
     print(sorted(os.listdir(out + '/c')), shutil.copyfile('large', out + '/l') and \
     os.path.getsize(out + '/l'))\nshutil.rmtree(out + '/c')\nos.unlink(out + '/l')",
    "from pathlib import Path\nprint(sorted(Path('.').glob('m*/00*')), Path('dir/up').resolve().name)\n\
     print(len(Path('aligned').read_bytes()), Path('small').read_text())\n\
     print([p.is_dir() for p in sorted(Path('.').iterdir()) if p.name != 'closed'])",
    "import mmap, hashlib\nfor name in ['large', 'aligned', 'small', 'zeros']:\n\
     \x20 f = open(name, 'rb')\n\
     \x20 m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)\n\
     \x20 print(name, len(m), hashlib.sha256(m).hexdigest())",
    "import subprocess\nprint(subprocess.run(['cat'], stdin=open('small'), capture_output=True).stdout)\n\
     print(subprocess.run(['cat', 'small'], cwd='dir/..', capture_output=True).stdout)\n\
     print(subprocess.run(['cat', 'inner'], cwd='dir', capture_output=True).returncode, os.listdir('dir/sub'))\n\
     print(subprocess.run(['ls', '-d', 'etc'], cwd='/', capture_output=True).stdout, os.path.exists('small'))\n\
     f = open('small', 'rb')\nf.seek(6)\nf.read(0)\n\
     print(subprocess.check_output('head -c 4 <&%d' % f.fileno(), shell=True, pass_fds=[f.fileno()]))",
    "import multiprocessing, hashlib\n\
     def work(n):\n\
     \x20 return n, hashlib.sha256(open('many/%04d' % n, 'rb').read()).hexdigest()\n\
     with multiprocessing.Pool(3) as pool:\n\
     \x20 print(pool.map(work, range(200)))",
    "import threading, hashlib\nout = {}\n\
     def work(n):\n\
     \x20 out[n] = [hashlib.sha256(open('many/%04d' % m, 'rb').read()).hexdigest() for m in range(n, 200, 8)]\n\
     ts = [threading.Thread(target=work, args=(n,)) for n in range(8)]\n\
     [t.start() for t in ts]\n[t.join() for t in ts]\nprint(sorted(out.items()))",
    "for act in [lambda: open('new', 'w'), lambda: os.mkdir('new'), lambda: os.unlink('small'), \
     lambda: os.rename('small', 'new'), lambda: open('dir'), lambda: os.truncate('small', 1), \
     lambda: os.listdir('small'), lambda: os.open('link', os.O_NOFOLLOW), lambda: os.stat('loop')]:\n\
     \x20 try:\n    print(act())\n\
     \x20 except OSError as e:\n    print(e.errno)",
    "import socket, array\na, b = socket.socketpair()\nf = os.open('text', os.O_RDONLY)\nos.lseek(f, 6, 0)\n\
     if os.fork() == 0:\n\
     \x20 os.execv('/usr/bin/env', ['env', '-u', 'LD_PRELOAD', '/usr/bin/python3', '-c', \
     'import socket, os; s = socket.socket(fileno=%d); print(os.read(socket.recv_fds(s, 1, 1)[1][0], 9))' \
     % (os.set_inheritable(b.fileno(), True) or b.fileno())])\n\
     socket.send_fds(a, [b'x'], [f])\nprint(os.wait()[1], os.read(f, 5))",
    "import tarfile, io\nf = open('text')\nprint(f.seek(100), f.readline(), f.seek(0, 2), f.fileno() > 2)\n\
     with open('large', 'rb', buffering=0) as f:\n\
     \x20 print(len(f.read(1 << 20)), f.tell(), len(f.readall()), f.read(1))\n\
     d = os.open('dir', os.O_RDONLY)\nprint(sorted(os.listdir(d)), os.stat('inner', dir_fd=d).st_size)\n\
     print(os.fstatvfs(d).f_flag & 1)\nos.fchdir(d)\nprint(sorted(e.name for e in os.scandir('.')))",
];

fn all(user: User) {
    let fixture = Fixture::new();
    let mut differ = Vec::new();
    for script in SCRIPTS {
        differ.extend(fixture.difference(user, script));
    }
    for program in PYTHON {
        let program = format!("import os\nout = os.environ['OUT']\n{program}");
        std::fs::write(fixture.path("program.py"), program).unwrap();
        // The one of the system: others may be where an ordinary user may not look.
        let script = "cd $ROOT && /usr/bin/python3 $HERE/program.py 2>&1; cat $HERE/program.py";
        differ.extend(fixture.difference(user, script));
    }
    assert!(differ.is_empty(), "{} differ:\n{}", differ.len(), differ.join("\n"));
}

#[test]
fn programs_say_the_same() {
    all(User::Own);
}

#[test]
fn programs_of_another_user_say_the_same() {
    if is_root() {
        all(User::Nobody);
    }
}

#[test]
fn a_packed_repository_has_its_history() {
    let fixture = Fixture::new();
    let script = "git -c safe.directory='*' -C $ROOT log --stat --format='%H %s' 2>&1";
    let make = "cd $OUT && rm -rf git && git init -q git && cd git && for n in 1 2 3; do \
                echo $n >> file && git add file && \
                git -c user.name=a -c user.email=a@b commit -qm $n; done && git gc -q && echo made";
    let made = fixture.run(support::On::Tree, User::Own, make);
    assert_eq!(made.stdout, b"made\n", "{}", String::from_utf8_lossy(&made.stderr));
    fixture.restage(&fixture.path("out/git"));
    fixture.compare(User::Own, script);
    fixture.compare(
        User::Own,
        "cd $ROOT && git -c safe.directory='*' fsck 2>&1; git \
                                -c safe.directory='*' show HEAD:file; echo $?",
    );
}
