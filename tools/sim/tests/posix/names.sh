# Names of 255 bytes, paths of 4,096, and bytes that are no text.
long=$(printf '%0255d' 0)
touch "$long" && ls | wc -L; touch "${long}0"; mkdir "${long}0"; ln -s x "${long}0"; mv "$long" "${long}0"
stat "${long}0"; mkdir -p "d/$long"; rm "$long"
part=$(printf '%0250d' 0)
path=.
for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16; do path=$path/$part; done
mkdir -p "$path" && echo "${#path}"
touch "$path/$(printf '%076d' 0)" && echo 4095
touch "$path/$(printf '%077d' 0)"
find . -type d | wc -l; find . -type f | wc -l
(cd "$part/$part/$part" && mkdir -p "$part/x" && ls "$part" | wc -l)
rm -r "./$part"
for name in ' ' '-f' "$(printf '\377\376')" "$(printf 'a\nb')" '\' '*' ...; do
    touch "./$name"; mv "./$name" "./${name}2"; ls -b "./${name}2"
done
ls | wc -l
