//! Random operations, most of them plausible.

use crate::subject::CAPABILITY;
use crate::{Durability, Fallocate, Kind, Op, RenameMode, Special, Time, XattrMode, join, split};
use extant_rt::Rng;
use std::collections::BTreeMap;

/// Generates operations from a seed. It keeps a rough idea of which paths exist, so that most
/// operations hit something.
#[derive(Clone, Debug)]
pub struct Generator {
    rng: Rng,
    known: BTreeMap<String, Kind>,
    held: Vec<u8>,
    /// Immutable and append-only files.
    frozen: Vec<String>,
    tag: u32,
    /// Whether to keep files open.
    pub holds: bool,
    /// Whether to allocate space.
    pub allocates: bool,
    /// Whether to collapse and insert ranges, and to copy between files.
    pub moves: bool,
    /// Whether to assign files to projects.
    pub projects: bool,
    /// Whether to make files immutable or append-only.
    pub freezes: bool,
    /// Whether to set file capabilities.
    pub capabilities: bool,
    /// Whether to sleep.
    pub sleeps: bool,
    /// Whether to sync.
    pub syncs: bool,
    /// Longest write, in bytes.
    pub longest_write: u64,
    /// Number of names in use; fewer collide more often.
    pub names: u64,
}

/// Flags for immutable and append-only.
const FROZEN: u32 = 0x30;

impl Generator {
    /// For an empty volume.
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::labelled(seed, "operations"),
            known: BTreeMap::from([(String::new(), Kind::Dir)]),
            held: Vec::new(),
            frozen: Vec::new(),
            tag: 0,
            holds: true,
            allocates: false,
            moves: false,
            projects: false,
            freezes: false,
            capabilities: false,
            sleeps: false,
            syncs: true,
            longest_write: 20_000,
            names: 12,
        }
    }

    /// For a volume with these paths.
    pub fn over(seed: u64, known: impl IntoIterator<Item = (String, Kind)>) -> Self {
        let mut generator = Self::new(seed);
        generator.known.extend(known);
        generator
    }

    /// The next `count` operations.
    pub fn take(&mut self, count: usize) -> Vec<Op> {
        (0..count).map(|_| self.next_op()).collect()
    }

    /// Remembers a new name, if it can be created.
    fn note(&mut self, path: &str, kind: Kind) {
        let (dir, name) = split(path);
        if name.len() <= 255 && self.known.get(dir) == Some(&Kind::Dir) {
            self.known.entry(path.to_owned()).or_insert(kind);
        }
    }

    /// Forgets a name and everything below it, and returns them.
    fn cut(&mut self, path: &str) -> Vec<(String, Kind)> {
        let below = format!("{path}/");
        let inside = |known: &str| known == path || known.starts_with(&below);
        let moved: Vec<(String, Kind)> = self
            .known
            .iter()
            .filter(|(known, _)| inside(known))
            .map(|(p, &kind)| (p.clone(), kind))
            .collect();
        self.known.retain(|known, _| !inside(known));
        moved
    }

    fn paste(&mut self, moved: Vec<(String, Kind)>, from: &str, to: &str) {
        self.known
            .extend(moved.into_iter().map(|(path, kind)| (format!("{to}{}", &path[from.len()..]), kind)));
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.rng.below(from.len() as u64) as usize]
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    fn known_of(&mut self, wanted: impl Fn(Kind) -> bool) -> Option<String> {
        let fit: Vec<&String> =
            self.known.iter().filter(|(_, kind)| wanted(**kind)).map(|(path, _)| path).collect();
        let len = fit.len() as u64;
        (len > 0).then(|| fit[self.rng.below(len) as usize].clone())
    }

    /// A path that most likely does not exist, in a directory that most likely does.
    fn fresh(&mut self) -> String {
        let dir = self.known_of(|kind| kind == Kind::Dir).unwrap_or_default();
        let dir = if dir.matches('/').count() > 3 { String::new() } else { dir };
        let number = self.rng.below(self.names);
        let name = match self.rng.below(200) {
            0 => "n".repeat(255),
            1 => "n".repeat(256),
            _ => format!("n{number}"),
        };
        join(&dir, &name)
    }

    /// A path that most likely exists.
    fn old(&mut self, wanted: impl Fn(Kind) -> bool) -> String {
        if self.chance(5) {
            return self.fresh();
        }
        let any = self.chance(7);
        // Opening a host device node asks the device, not the file system.
        let opens = |kind| matches!(kind, Kind::File | Kind::Dir | Kind::Symlink);
        match self.known_of(|kind| wanted(kind) || (any && opens(kind))) {
            Some(path) if !path.is_empty() => path,
            _ => self.fresh(),
        }
    }

    fn mode(&mut self) -> u32 {
        self.pick(&[0o644, 0o600, 0o755, 0o777, 0o4755, 0o2755, 0o1777, 0o000])
    }

    fn time(&mut self) -> Time {
        let seconds = self.pick(&[0, 1, -1, 1_700_000_000, 4_000_000_000, 12_345_678]);
        Time { seconds, nanos: self.rng.below(1_000_000_000) as u32 }
    }

    fn span(&mut self) -> (u64, u64) {
        let offset = match self.rng.below(6) {
            0 => 0,
            1 => self.rng.below(16) * 1024,
            2 => self.rng.below(16) * 4096,
            3 => self.rng.below(300_000),
            _ => self.rng.below(12_000),
        };
        (offset, 1 + self.rng.below(self.longest_write))
    }

    fn next_op(&mut self) -> Op {
        let is_file = |kind| kind == Kind::File;
        let is_dir = |kind| kind == Kind::Dir;
        let not_dir = |kind| kind != Kind::Dir;
        let any = |_| true;
        match self.rng.below(112) {
            100..104 => self.set_flags(),
            104..107 => {
                let path = self.old(|kind| is_file(kind) || is_dir(kind));
                let default = self.chance(40) && self.known.get(&path) == Some(&Kind::Dir);
                let name = format!("system.posix_acl_{}", if default { "default" } else { "access" });
                if self.chance(25) {
                    return Op::RemoveXattr { path, name };
                }
                Op::SetXattr { path, name, value: self.acl(), mode: XattrMode::Any }
            }
            107..109 => Op::OpenTruncated { path: self.old(is_file) },
            109..111 if self.holds => self.tmpfile(),
            111 if self.sleeps => Op::Sleep { millis: self.pick(&[3, 900, 6_000, 40_000]) },
            0..12 => {
                let (path, mode, exclusive) = (self.fresh(), self.mode(), self.chance(50));
                self.note(&path, Kind::File);
                Op::Create { path, mode, exclusive }
            }
            12..19 => {
                let (path, mode) = (self.fresh(), self.mode());
                self.note(&path, Kind::Dir);
                Op::Mkdir { path, mode }
            }
            19..23 => {
                let path = self.fresh();
                let len = self.pick(&[1, 10, 59, 60, 61, 200, 900]);
                let target = if self.chance(40) { self.old(any) } else { "t".repeat(len) };
                self.note(&path, Kind::Symlink);
                Op::Symlink { target: if target.is_empty() { ".".into() } else { target }, path }
            }
            23..26 => {
                let (path, mode) = (self.fresh(), self.mode());
                let special = self.pick(&[
                    Special::Fifo,
                    Special::Socket,
                    // No driver has this number, so opening it is ENXIO on the host too.
                    Special::Char(200, 3),
                    Special::Block(700, 70_000),
                ]);
                self.note(&path, Kind::Fifo);
                Op::Mknod { path, special, mode }
            }
            26..32 => {
                let (from, to) = (self.old(not_dir), self.fresh());
                if let Some(&kind) = self.known.get(&from) {
                    self.note(&to, kind);
                }
                Op::Link { from, to }
            }
            32..41 => {
                let path = self.old(not_dir);
                if self.known.get(&path).is_some_and(|&kind| kind != Kind::Dir) {
                    self.known.remove(&path);
                }
                Op::Unlink { path }
            }
            41..45 => {
                let path = self.old(is_dir);
                let below = format!("{path}/");
                if !self.known.keys().any(|known| known.starts_with(&below)) && !path.is_empty() {
                    self.known.remove(&path);
                }
                Op::Rmdir { path }
            }
            45..57 => self.rename(),
            57..60 => Op::Chmod { path: self.old(any), mode: self.mode() },
            60..63 => {
                let (uid, gid) = (self.pick(&[0, 1, 1000, 100_000]), self.pick(&[0, 5, 70_000]));
                Op::Chown { path: self.old(any), uid, gid }
            }
            63..66 => Op::Utimens { path: self.old(any), atime: self.time(), mtime: self.time() },
            66..71 if self.capabilities && self.chance(20) => {
                let (path, name) = (self.old(is_file), CAPABILITY.to_owned());
                if self.chance(20) {
                    return Op::RemoveXattr { path, name };
                }
                Op::SetXattr { path, name, value: self.capability(), mode: XattrMode::Any }
            }
            66..71 => {
                let name = self.xattr_name();
                let len = self.pick(&[0, 1, 20, 70, 300, 900, 5000]);
                let mode =
                    self.pick(&[XattrMode::Any, XattrMode::Any, XattrMode::Create, XattrMode::Replace]);
                let value = vec![b'a' + self.rng.below(26) as u8; len];
                Op::SetXattr { path: self.old(|kind| is_file(kind) || is_dir(kind)), name, value, mode }
            }
            71..74 => {
                let name = self.xattr_name();
                Op::RemoveXattr { path: self.old(|kind| is_file(kind) || is_dir(kind)), name }
            }
            74..80 => {
                let (offset, _) = self.span();
                Op::Truncate { path: self.old(is_file), size: offset }
            }
            80..83 if self.moves => self.move_range(),
            83 if self.projects => {
                let path = self.old(|kind| is_file(kind) || is_dir(kind));
                Op::SetProject { path, project: self.pick(&[0, 1, 70_000]) }
            }
            80..91 => {
                let (offset, len) = self.span();
                self.tag += 1;
                let durability = match self.rng.below(20) {
                    0 if self.syncs => Durability::All,
                    1 if self.syncs => Durability::Data,
                    _ => Durability::None,
                };
                let (path, tag) = (self.old(is_file), self.tag);
                Op::Write { path, offset, len, tag, direct: false, durability }
            }
            91..93 if self.allocates => {
                let (offset, len) = self.span();
                let mode = self.pick(&[
                    Fallocate::Allocate,
                    Fallocate::KeepSize,
                    Fallocate::Zero,
                    Fallocate::ZeroKeepSize,
                    Fallocate::Punch,
                ]);
                Op::Fallocate { path: self.old(is_file), mode, offset, len }
            }
            93..96 if self.holds => self.held_op(),
            96..100 if self.syncs => match self.rng.below(5) {
                0 => Op::Sync,
                1 => Op::Fdatasync { path: self.old(is_file) },
                2 => Op::Fsync { path: self.old(is_dir) },
                _ => Op::Fsync { path: self.old(is_file) },
            },
            _ => {
                let (offset, len) = self.span();
                self.tag += 1;
                Op::write(&self.old(is_file), offset, len, self.tag)
            }
        }
    }

    /// Collapses or inserts ranges of whole blocks, or copies ranges.
    fn move_range(&mut self) -> Op {
        let path = self.old(|kind| kind == Kind::File);
        if self.chance(40) {
            let ((at, len), (to_at, _)) = (self.span(), self.span());
            return Op::CopyRange { from: path, at, to: self.old(|kind| kind == Kind::File), to_at, len };
        }
        let unit = self.pick(&[1024, 4096]);
        let (offset, len) = (self.rng.below(8) * unit, (1 + self.rng.below(4)) * unit);
        let mode = self.pick(&[Fallocate::Collapse, Fallocate::Insert]);
        Op::Fallocate { path, mode, offset, len }
    }

    /// `chattr` flags. A file made immutable or append-only is released by one of the next
    /// operations.
    fn set_flags(&mut self) -> Op {
        if let Some(path) = self.frozen.pop() {
            return Op::SetFlags { path, flags: 0 };
        }
        let path = self.old(|kind| matches!(kind, Kind::File | Kind::Dir));
        let flags = self.pick(&[0, 0x08, 0x40, 0x80, 0xc8, 0x1_0000, 0x10, 0x20]);
        if flags & FROZEN == 0 {
            return Op::SetFlags { path, flags };
        }
        if !self.freezes {
            return Op::SetFlags { path, flags: 0x40 };
        }
        self.frozen.push(path.clone());
        Op::SetFlags { path, flags }
    }

    /// An access control list, sometimes one equivalent to a mode.
    fn acl(&mut self) -> Vec<u8> {
        let mut entry = |tag: u16, id: u32| {
            let permissions = self.rng.below(8) as u16;
            [&tag.to_le_bytes()[..], &permissions.to_le_bytes(), &id.to_le_bytes()].concat()
        };
        let (mut users, mut groups) = (vec![entry(0x01, u32::MAX)], vec![entry(0x04, u32::MAX)]);
        users.extend([entry(0x02, 7), entry(0x02, 70_000)]);
        groups.extend([entry(0x08, 9), entry(0x10, u32::MAX)]);
        let other = entry(0x20, u32::MAX);
        if self.chance(30) {
            users.truncate(1);
            groups.truncate(1);
        }
        [vec![2_u32.to_le_bytes().to_vec()], users, groups, vec![other]].concat().concat()
    }

    /// `vfs_cap_data` of revision 2: permitted and inheritable sets, effective or not.
    fn capability(&mut self) -> Vec<u8> {
        let effective = self.rng.below(2) as u32;
        let sets = [self.rng.below(1 << 20) as u32, 0, self.rng.below(2) as u32, 0];
        let words = [[0x0200_0000 | effective].as_slice(), &sets].concat();
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn tmpfile(&mut self) -> Op {
        if self.held.is_empty() || self.chance(50) {
            let slot = self.rng.below(4) as u8;
            self.held.push(slot);
            return Op::Tmpfile { slot, dir: self.old(|kind| kind == Kind::Dir), mode: self.mode() };
        }
        let (slot, to) = (self.pick(&self.held.clone()), self.fresh());
        self.note(&to, Kind::File);
        Op::LinkHeld { slot, to }
    }

    fn xattr_name(&mut self) -> String {
        self.pick(&["user.a", "user.b", "user.a-much-longer-name", "trusted.c"]).to_owned()
    }

    fn rename(&mut self) -> Op {
        let from = self.old(|_| true);
        let to = if self.chance(55) { self.fresh() } else { self.old(|_| true) };
        let mode = match self.rng.below(10) {
            0 => RenameMode::NoReplace,
            1 | 2 => RenameMode::Exchange,
            3 => RenameMode::Whiteout,
            _ => RenameMode::Replace,
        };
        let nested = to.starts_with(&format!("{from}/")) || from.starts_with(&format!("{to}/")) || from == to;
        let (source, target) = (self.known.get(&from).copied(), self.known.get(&to).copied());
        let Some(source) = source.filter(|_| !nested && self.known.get(split(&to).0) == Some(&Kind::Dir))
        else {
            return Op::Rename { from, to, mode };
        };
        let below = format!("{to}/");
        let empty = !self.known.keys().any(|path| path.starts_with(&below));
        match (mode, target) {
            (RenameMode::Exchange, Some(_)) => {
                let (a, b) = (self.cut(&from), self.cut(&to));
                self.paste(a, &from, &to);
                self.paste(b, &to, &from);
            }
            (RenameMode::Replace | RenameMode::NoReplace | RenameMode::Whiteout, None) => {
                let moved = self.cut(&from);
                self.paste(moved, &from, &to);
            }
            (RenameMode::Replace | RenameMode::Whiteout, Some(target))
                if (target == Kind::Dir) == (source == Kind::Dir) && empty =>
            {
                let moved = self.cut(&from);
                self.known.remove(&to);
                self.paste(moved, &from, &to);
            }
            _ => {}
        }
        if mode == RenameMode::Whiteout {
            self.known.entry(from.clone()).or_insert(Kind::Fifo);
        }
        Op::Rename { from, to, mode }
    }

    fn held_op(&mut self) -> Op {
        match self.rng.below(3) {
            0 => {
                let slot = self.rng.below(4) as u8;
                self.held.push(slot);
                Op::Hold { slot, path: self.old(|kind| kind == Kind::File) }
            }
            1 if !self.held.is_empty() => {
                let slot = self.pick(&self.held.clone());
                self.held.retain(|&held| held != slot);
                Op::Release { slot }
            }
            _ => {
                let (offset, len) = self.span();
                self.tag += 1;
                Op::WriteHeld { slot: self.rng.below(4) as u8, offset, len, tag: self.tag }
            }
        }
    }
}
