# Symbolic links: in the middle, at the end, without end.
mkdir -p a/b/c; echo deep > a/b/c/f
ln -s a/b m; ln -s ../a/b/c a/n; ln -s "$PWD/a" abs; ln -s nowhere dangling; ln -s loop loop
ln -s two one; ln -s one two
cat m/c/f a/n/f abs/b/c/f abs/n/f m/../b/c/f
cat loop; cat loop/x; ls one/; stat loop > /dev/null && echo the link itself
cat dangling; cat dangling/x; echo made > dangling && cat nowhere
mkdir loop; rmdir m; rm -r m/ 2> /dev/null; ls m; touch m/c/g && ls a/b/c
readlink m loop one; readlink a; readlink -f abs/n
i=0; prev=f0; echo end > f0
while [ $i -lt 41 ]; do i=$((i + 1)); ln -s "$prev" "f$i"; prev=f$i; done
cat f40; cat f41
ln m second; readlink second; cat second/c/f; stat -c %h m
ln -s "$(printf '%04095d' 0)" long && readlink long | wc -c
ln -s "$(printf '%04096d' 0)" longer
ln -s '' empty
mv m moved; cat moved/c/f; rm moved second; ls a/b
chmod 600 dangling; stat -c %A dangling; chown -h 1001 one; stat -c %u one; cat one
touch -h -d 2001-01-01 loop; stat -c %Y loop
