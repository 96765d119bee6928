//! Random damage. The check must not crash or hang, and must agree with e2fsck on whether something
//! is wrong. A repair must keep every file that e2fsck keeps.

use crate::repairs::{planned, repaired};
use crate::survivors::{Reached, Tree, tree};
use crate::testbed::{
    Random, complains, debugfs, e2fsck, examine, examine_with, is_known_to_e2fsck, list, run, volume,
};
use extant_check::repair::Policy;
use extant_check::{Checked, Code, Finding, Options};
use std::fs;
use std::path::{Path, PathBuf};

/// Number of mutations of each volume; `EXTANT_CHECK_MUTATIONS` asks for more.
const COUNT: u64 = 8;
/// One damaged volume in this many is repaired; with `EXTANT_CHECK_MUTATIONS`, all of them are.
const REPAIRED: u64 = 8;

const VOLUMES: [(&str, u32, &[&str]); 10] = [
    ("ext4", 1 << 10, &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^resize_inode", "-N", "192"]),
    (
        "plain",
        1 << 10,
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,^has_journal,^resize_inode", "-N", "192"],
    ),
    ("ext2", 1 << 10, &["-t", "ext2", "-b", "1024", "-N", "192"]),
    (
        "inline",
        1 << 10,
        &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum,inline_data,^has_journal", "-N", "192"],
    ),
    ("tiny", 100, &["-t", "ext2", "-b", "1024", "-N", "32"]),
    ("journal", 8 << 10, &["-t", "ext4", "-b", "1024", "-g", "2048", "-N", "512"]),
    ("wide", 8 << 10, &["-t", "ext4", "-b", "4096", "-O", "quota,^has_journal", "-N", "256"]),
    (
        "clusters",
        8 << 10,
        &["-t", "ext4", "-b", "1024", "-C", "4096", "-O", "bigalloc,^resize_inode,^has_journal", "-N", "256"],
    ),
    (
        "groups",
        4 << 10,
        &["-t", "ext4", "-b", "1024", "-g", "512", "-O", "meta_bg,^resize_inode,^has_journal", "-N", "256"],
    ),
    ("short", 2 << 10, &["-t", "ext4", "-b", "1024", "-I", "128", "-O", "^has_journal", "-N", "192"]),
];

/// Changes a few bytes or bits of blocks in use.
fn mutate(bytes: &mut [u8], blocks: &[usize], random: &mut Random) {
    for _ in 0..1 + random.below(2) {
        let block = blocks[random.below(blocks.len() as u64) as usize];
        let at = block * 1024 + random.below(1024) as usize;
        match random.below(4) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => {
                let at = at / 4 * 4;
                bytes[at..at + 4].copy_from_slice(&(random.below(2000) as u32).to_le_bytes());
            }
            _ => bytes[at] = if random.below(2) == 0 { 0 } else { 0xff },
        }
    }
}

/// A volume without damage, with files on it.
fn sound(folder: &Path, name: &str, kib: u32, options: &[&str]) -> PathBuf {
    let image = folder.join(name);
    if kib < 1 << 10 {
        let (path, size) = (image.to_str().unwrap(), format!("{kib}k"));
        run("mke2fs", &[&["-q", "-F"], options, &[path, &size]].concat());
        let text = folder.join("text");
        fs::write(&text, "text\n".repeat(500)).unwrap();
        let write = format!("write {} dir/text", text.display());
        debugfs(&image, &["mkdir dir", "mkdir dir/sub", &write, "symlink dir/sub/link text"]);
    } else {
        volume(folder, name, kib, options);
        if options.contains(&"ext4") && !options.contains(&"-C") {
            // A file with so many extents that they need nodes.
            let holes: Vec<String> = (0..30).map(|n| format!("punch /large {} {}", 4 * n, 4 * n)).collect();
            debugfs(&image, &holes.iter().map(String::as_str).collect::<Vec<_>>());
        }
        debugfs(&image, &["ea_set /file user.one first", "ea_set /dir user.two second"]);
    }
    let _ = extant_testbed::command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
    image
}

/// A row of the table of differences in docs/check.md, and which findings it covers.
type Difference = (&'static str, fn(&Finding) -> bool);

/// Findings that e2fsck does not report, although it knows their codes.
const OURS: [Difference; 12] = [
    ("`entry-value-inode`", |finding| finding.code == Code::EntryValueInode),
    ("`feature-missing` for the mark of an attribute's value", |finding| {
        finding.code == Code::FeatureMissing && finding.found.ends_with("ea_inode")
    }),
    ("`orphan-list` where no inode is wrong", |finding| finding.code == Code::OrphanList),
    ("`resize-inode` in pointers of more than a quarter of the reserved blocks", |finding| {
        finding.code == Code::ResizeInode
    }),
    ("`quota-file` in what its usage does not need, such as counts of entries", |finding| {
        finding.code == Code::QuotaFile
    }),
    ("`superblock-field` for the mark of a volume for tests", |finding| {
        finding.code == Code::SuperblockField && finding.found.starts_with("s_flags is")
    }),
    ("`inode-reserved` for attributes and sizes of the unused inodes 3, 4 and 8", |finding| {
        finding.code == Code::InodeReserved
            && matches!(finding.spot.inode, Some(3 | 4 | 8))
            && matches!(&*finding.expected, "none, for it is reserved" | "none, for it is no file")
    }),
    ("`xattr-pointer` of inodes without a name", |finding| {
        finding.code == Code::XattrPointer && finding.spot.inode.is_some_and(|number| number < 11)
    }),
    ("`symlink` with its target in the inode and NUL bytes there", |finding| {
        finding.code == Code::Symlink && finding.found == "an empty or interrupted target"
    }),
    (
        "`inode-flags` for the mark of an attribute's value on a directory or a file of the volume itself",
        |finding| {
            finding.code == Code::InodeFlags && finding.found.starts_with("the mark of an attribute's value")
        },
    ),
    ("`inode-flags` for an encrypted journal", |finding| {
        finding.code == Code::InodeFlags && finding.found == "an encrypted journal"
    }),
    ("`extent-header` at depth 6 and 7", |finding| {
        finding.code == Code::ExtentHeader && matches!(&*finding.found, "eh_depth is 6" | "eh_depth is 7")
    }),
];

/// Findings that only e2fsck has: a row of that table, and e2fsck's words.
const THEIRS: [(&str, &str); 2] = [
    (
        "an attribute without a value whose offset is out of range",
        "INLINE_DATA_FL flag but extended attribute not found",
    ),
    ("journals on other devices", "Can't find external journal"),
];

/// Whether docs/check.md explains why only one of the two finds something.
fn is_in_the_table(ours: Option<&Checked>, theirs: &(i32, String)) -> bool {
    let is_explained = |finding: &Finding| {
        !is_known_to_e2fsck(finding.code) || OURS.iter().any(|(_, speaks_of)| speaks_of(finding))
    };
    let are_ours = ours.is_some_and(|ours| ours.findings.iter().all(is_explained));
    THEIRS.iter().any(|(_, words)| theirs.1.contains(words)) || !complains(theirs) && are_ours
}

#[test]
fn the_documentation_explains_each_difference() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/check.md")).unwrap();
    let (_, page) = page.split_once("## Differences from e2fsck").unwrap();
    let (ours, theirs) = page.split_once("Where e2fsck -fn complains and `check` does not").unwrap();
    for (row, _) in THEIRS {
        assert!(theirs.contains(&format!("| {row} |")), "docs/check.md lacks: {row}");
    }
    let mut rows: Vec<&str> = ours.lines().filter(|line| line.starts_with("| `")).collect();
    for code in Code::ALL {
        // e2fsck does not check this.
        if let Some(reason) = code.e2fsck().strip_prefix("none: ") {
            let row = format!("| `{code}` | {reason} |");
            assert!(rows.contains(&&*row), "docs/check.md lacks: {row}");
            rows.retain(|other| *other != row);
        }
    }
    let cases: Vec<&str> = rows.iter().filter_map(|row| row[2..].split(" |").next()).collect();
    assert_eq!(cases, OURS.map(|(row, _)| row));
}

/// Whether the location of an inode table is lost in all copies. We do not repair that; e2fsck
/// makes an empty table, or happens to choose the old location.
fn has_no_table(bytes: &[u8]) -> bool {
    planned(bytes, Policy::All).is_ok_and(|plan| plan.left().any(|left| left.code == Code::DescriptorPlace))
}

/// What to compare the repair of a volume with.
struct Case<'a> {
    name: &'a str,
    bytes: &'a [u8],
    image: &'a Path,
    /// The files that could be reached before the damage.
    was: &'a Tree,
}

impl Case<'_> {
    /// Returns what is wrong with the repair, if anything.
    fn judge(&self) -> Option<String> {
        let repaired = repaired(self.name, self.bytes, self.image).map(tree);
        // e2fsck cannot keep more than the files that were reachable before the damage.
        let is_whole = |ours: &Tree| self.was.iter().all(|(path, file)| ours.get(path) == Some(file));
        if repaired.as_ref().is_ok_and(is_whole) {
            return None;
        }
        fs::write(self.image, self.bytes).unwrap();
        let is_silent = (0..2).any(|_| {
            let _ = extant_testbed::command("e2fsck").arg("-fy").arg(self.image).output().unwrap();
            !complains(&e2fsck(self.image))
        });
        let theirs = tree(fs::read(self.image).unwrap());
        let has = |tree: &Tree, file: &Reached| tree.values().any(|other| other == file);
        // A repair that makes a new inode table leaves an empty /lost+found.
        let is_own = |path: &[u8]| path == b"/lost+found";
        let has_any = self.was.iter().any(|(path, file)| !is_own(path) && has(&theirs, file));
        let is_theirs_sound = has_any && is_silent;
        let ours = match repaired {
            Ok(ours) => ours,
            // A failed repair counts only if e2fsck succeeds, and no inode table is lost.
            Err(_) if !is_theirs_sound || has_no_table(self.bytes) => return None,
            Err(said) => return Some(said),
        };
        if !is_theirs_sound {
            return None;
        }
        let mut lost = Vec::new();
        for (path, file) in self.was {
            let shown = String::from_utf8_lossy(path);
            let is_at = |path: &[u8]| ours.get(path) == Some(file);
            // If a name is in two blocks, e2fsck keeps both entries.
            let is_renamed = || (0..4).any(|n| is_at(&[path, format!("~{n}").as_bytes()].concat()));
            if has(&theirs, file) && !has(&ours, file) {
                lost.push(format!("{shown}, {file:?}"));
            } else if theirs.get(path) == Some(file) && !is_at(path) && !is_renamed() {
                lost.push(format!("the name {shown}, {file:?}"));
            }
        }
        (!lost.is_empty()).then(|| {
            let plan = planned(self.bytes, Policy::All).unwrap();
            format!(
                "{}: lost, and e2fsck keeps it: {lost:#?}\nfound:\n{}\nsteps:\n{}",
                self.name,
                list(&plan.before),
                crate::repairs::steps(&plan)
            )
        })
    }
}

/// Prints the name of the tested volume if the test panics.
struct Named<'a>(&'a str, u64);

impl Drop for Named<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("in {}, seed {}", self.0, self.1);
        }
    }
}

#[test]
fn e2fsck_agrees_about_random_damage() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let asked = std::env::var("EXTANT_CHECK_MUTATIONS").ok().and_then(|n| n.parse().ok());
    let (count, repaired) = asked.map_or((COUNT, REPAIRED), |count| (count, 1));
    let first = std::env::var("EXTANT_CHECK_SEED").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let only = std::env::var("EXTANT_CHECK_ONLY").unwrap_or_default();
    // Damaged volumes on which e2fsck and this crate disagree are kept here.
    let keep = std::env::var_os("EXTANT_CHECK_KEEP").map(PathBuf::from);
    let folder = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for (name, kib, options) in VOLUMES.into_iter().filter(|(name, ..)| name.contains(&only)) {
        let image = sound(folder.path(), name, kib, options);
        let base = fs::read(&image).unwrap();
        let was = tree(base.clone());
        assert!(was.len() > 4, "{name}");
        // Damage to zeros and to contents of files is of no interest.
        let is_metadata =
            |block: &&[u8]| block.iter().any(|&b| b != 0) && !block.iter().all(|&b| b == block[0]);
        let blocks: Vec<usize> =
            base.chunks(1024).enumerate().filter(|(_, block)| is_metadata(block)).map(|(n, _)| n).collect();
        for seed in first..first + count {
            let _named = Named(name, seed);
            let mut bytes = base.clone();
            mutate(&mut bytes, &blocks, &mut Random::new(seed));
            if bytes == base {
                continue;
            }
            fs::write(&image, &bytes).unwrap();
            let ours = examine(bytes.clone());
            // The list of findings does not depend on the number of tasks and of reads in flight.
            let (tasks, depth) = (1 + seed as usize % 7, 1 + seed as usize % 5);
            let again = examine_with(bytes.clone(), Options { tasks, depth, ..Options::default() });
            let lists = [&ours, &again].map(|ours| ours.as_ref().map(list).map_err(ToString::to_string));
            assert_eq!(lists[0], lists[1], "{name}, seed {seed}: {tasks} tasks, {depth} reads");
            let theirs = e2fsck(&image);
            let (known, shown) = match &ours {
                Ok(checked) => (checked.counts.keys().any(|&code| is_known_to_e2fsck(code)), list(checked)),
                Err(error) => (true, error.to_string()),
            };
            if is_in_the_table(ours.as_ref().ok(), &theirs) {
                continue;
            }
            let before = wrong.len();
            if known != complains(&theirs) {
                let (exit, said) = theirs;
                wrong.push(format!("{name}, seed {seed}: e2fsck ends with {exit}: {said}\nours:\n{shown}\n"));
            } else if known && seed % repaired == 0 {
                let name = format!("{name}, seed {seed}");
                wrong.extend(Case { name: &name, bytes: &bytes, image: &image, was: &was }.judge());
            }
            if let Some(keep) = keep.as_ref().filter(|_| wrong.len() > before) {
                fs::write(keep.join(format!("{name}-{seed}")), &bytes).unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{} disagreements\n{}", wrong.len(), wrong.join("\n"));
}
