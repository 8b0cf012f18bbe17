// Lists, looks at, reads, streams and copies files.
const fs = require('fs');
const path = require('path');

const [root, out] = [process.env.ROOT, process.env.OUT];
const images = path.join(root, 'images/val');
for (const entry of fs.readdirSync(images, { withFileTypes: true })) {
    console.log(entry.name, entry.isDirectory(), fs.readdirSync(path.join(images, entry.name)));
}
const file = path.join(root, 'include/stdio.h');
const [stat, open] = [fs.statSync(file), fs.fstatSync(fs.openSync(file))];
console.log(stat.size, stat.mtimeMs, stat.mode, open.size, open.ino === stat.ino);
console.log(fs.realpathSync(images), fs.existsSync(path.join(root, 'absent')));
fs.copyFileSync(file, path.join(out, 'copy'));
fs.cpSync(images, path.join(out, 'images'), { recursive: true });
console.log(fs.readFileSync(path.join(out, 'copy')).equals(fs.readFileSync(file)));
console.log(fs.readdirSync(path.join(out, 'images', 'class03')));
fs.createReadStream(file).on('data', (data) => console.log('read', data.length));
