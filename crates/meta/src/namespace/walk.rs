//! Prefix coalescing (FalconFS, §4.4): requests that have arrived together mostly take the same way, and what
//! one has found on it the next need not look up again. The paper spares locks by that; a shard has none, and
//! spares the looks into its replica and the checks of permissions.

use bytes::Bytes;
use saker_types::wire::At;
use saker_types::{Cred, InodeId, ROOT};

use super::dir::{ResolvedDir, in_force, in_force_below};

/// The directories on the way from the root that was walked last; the caller may search all but the last. As good
/// as entries of the replica: it ends with the next invalidation.
#[derive(Default)]
pub struct LastWalk {
    cred: Cred,
    /// The components' names, one behind the other.
    names: Vec<u8>,
    /// The root, and where each component leads.
    places: Vec<PassedDir>,
}

/// One of them.
#[derive(Clone)]
pub struct PassedDir {
    /// The directory.
    pub dir: ResolvedDir,
    /// Everybody may search all that are above it.
    pub searchable: bool,
    /// Policy in force in it.
    pub policy: u64,
    /// The component of the path that has this policy of its own; `None`: it was told with the anchor.
    pub policy_root: Option<usize>,
    /// Where the name that leads to it ends in `names`.
    end: usize,
}

impl PassedDir {
    /// Where a walk starts, under the policy that the client knows to be in force there.
    pub fn start(dir: ResolvedDir, policy: u64) -> PassedDir {
        let policy = in_force(dir.policy, policy);
        PassedDir { dir, searchable: true, policy, policy_root: None, end: 0 }
    }
}

impl LastWalk {
    /// Is it worth a try? A walk from elsewhere, or one that asks for leases on names, is made by itself.
    pub fn serves(at: &At) -> bool {
        at.keep_ms.is_empty() && at.anchor.id == ROOT
    }

    /// As far as `at` goes the same way before its last component, if `cred` is the same: how many components
    /// that is, and where they lead. Whatever is beyond is forgotten.
    pub fn resume(&mut self, cred: &Cred, at: &At) -> Option<(usize, PassedDir)> {
        if self.cred != *cred {
            return None;
        }
        let mut start = self.places.first()?.end;
        let on_the_way = at.path.len().saturating_sub(1);
        let mut shared = 0;
        for (place, name) in self.places[1..].iter().zip(&at.path[..on_the_way]) {
            let expected = at.expect.get(shared).is_none_or(|id| *id == 0 || *id == place.dir.id);
            if !expected || self.names[start..place.end] != **name {
                break;
            }
            (start, shared) = (place.end, shared + 1);
        }
        self.names.truncate(start);
        self.places.truncate(shared + 1);
        self.places.last().map(|place| (shared, place.clone()))
    }

    /// Another walk begins at the root.
    pub fn begin(&mut self, cred: &Cred, root: PassedDir) {
        self.clear();
        self.cred.clone_from(cred);
        self.places.push(root);
    }

    /// The walk goes on from its last place.
    pub fn add(&mut self, name: &[u8], dir: &ResolvedDir, searchable: bool) {
        self.names.extend_from_slice(name);
        let above = self.places.last().map_or((0, None), |above| (above.policy, above.policy_root));
        // The root, which has no component, is the first of them.
        let at = self.places.len().saturating_sub(1);
        let (policy, policy_root) = in_force_below(above, dir.policy, at);
        let (dir, end) = (dir.clone(), self.names.len());
        self.places.push(PassedDir { dir, searchable, policy, policy_root, end });
    }

    /// All of it but the root, as entries of the replica: parent, name, directory.
    pub fn all(&self) -> impl Iterator<Item = (InodeId, Bytes, ResolvedDir)> {
        self.places.windows(2).map(|pair| {
            let name = &self.names[pair[0].end..pair[1].end];
            (pair[0].dir.id, Bytes::copy_from_slice(name), pair[1].dir.clone())
        })
    }

    /// Forgets it.
    pub fn clear(&mut self) {
        self.names.clear();
        self.places.clear();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use saker_types::Locator;

    use super::*;

    fn dir(id: u64) -> ResolvedDir {
        ResolvedDir { id, mode: 0o040_755, uid: 0, gid: 0, policy: 0, acls: None }
    }

    fn at(path: &str, expect: &[u64]) -> At {
        let names = path.split('/').map(|name| Bytes::copy_from_slice(name.as_bytes()));
        let (anchor, expect) = (Locator::root(), expect.to_vec());
        At { anchor, path: names.collect(), expect, ..At::default() }
    }

    /// Of `/ab/c/d`, whose directories are 1, 2, 3 and 4.
    fn walked() -> LastWalk {
        let (mut walk, cred) = (LastWalk::default(), Cred::default());
        assert!(walk.resume(&cred, &at("ab/c/d/f", &[])).is_none());
        walk.begin(&cred, PassedDir::start(dir(1), 0));
        for (name, id) in [("ab", 2), ("c", 3), ("d", 4)] {
            walk.add(name.as_bytes(), &dir(id), id < 4);
        }
        walk
    }

    fn resumed(walk: &mut LastWalk, at: &At) -> (usize, u64) {
        let (shared, place) = walk.resume(&Cred::default(), at).unwrap();
        assert_eq!(place.searchable, place.dir.id < 4);
        (shared, place.dir.id)
    }

    #[test]
    fn a_walk_is_shared_as_far_as_it_is_the_same() {
        for (path, wanted) in [
            ("ab/c/d/g", (3, 4)),
            ("ab/c/d/g/h", (3, 4)),
            ("ab/c/d", (2, 3)),
            ("ab/c/e/f", (2, 3)),
            ("ab/cd/f", (1, 2)),
            ("a/bc/d/f", (0, 1)),
            ("abc/d/f", (0, 1)),
            ("f", (0, 1)),
        ] {
            assert_eq!(resumed(&mut walked(), &at(path, &[])), wanted, "{path}");
        }
        let root = At { path: vec![], ..at("f", &[]) };
        assert_eq!(resumed(&mut walked(), &root), (0, 1));
    }

    #[test]
    fn a_policy_is_in_force_below_the_directory_that_has_it() {
        let (mut walk, cred) = (LastWalk::default(), Cred::default());
        walk.begin(&cred, PassedDir::start(dir(1), 0));
        for (name, id, own) in [("a", 2, 0), ("b", 3, 7), ("c", 4, 0), ("d", 5, 9)] {
            walk.add(name.as_bytes(), &ResolvedDir { policy: own, ..dir(id) }, true);
        }
        for (path, policy, root) in [
            ("a/b/c/d/f", 9, Some(3)),
            ("a/b/c/f", 7, Some(1)),
            ("a/b/f", 7, Some(1)),
            ("a/f", 0, None),
            ("f", 0, None),
        ] {
            let place = walk.resume(&cred, &at(path, &[])).unwrap().1;
            assert_eq!((place.policy, place.policy_root), (policy, root), "{path}");
        }
        assert_eq!(PassedDir::start(dir(1), 5).policy, 5, "as the client was told");
        assert_eq!(PassedDir::start(ResolvedDir { policy: 7, ..dir(1) }, 5).policy, 7);
    }

    #[test]
    fn what_is_beyond_is_forgotten() {
        let mut walk = walked();
        assert_eq!(resumed(&mut walk, &at("ab/x/f", &[])), (1, 2));
        assert_eq!(resumed(&mut walk, &at("ab/c/d/f", &[])), (1, 2));
        walk.add(b"x", &dir(3), true);
        assert_eq!(resumed(&mut walk, &at("ab/x/f", &[])), (2, 3));
        walk.clear();
        assert!(walk.resume(&Cred::default(), &at("ab/x/f", &[])).is_none());
    }

    #[test]
    fn who_expects_other_directories_or_is_somebody_else_walks() {
        assert_eq!(resumed(&mut walked(), &at("ab/c/d/f", &[2, 0, 4])), (3, 4));
        assert_eq!(resumed(&mut walked(), &at("ab/c/d/f", &[2, 7])), (1, 2));
        let other = Cred { uid: 7, ..Cred::default() };
        assert!(walked().resume(&other, &at("ab/c/d/f", &[])).is_none());
        let elsewhere = Locator { id: 9, ..Locator::root() };
        assert!(!LastWalk::serves(&At { anchor: elsewhere, ..at("f", &[]) }));
        assert!(!LastWalk::serves(&At { keep_ms: vec![1], ..at("f", &[]) }));
        assert!(LastWalk::serves(&at("f", &[])));
    }
}
