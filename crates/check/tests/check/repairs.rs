//! Repairs: afterwards, e2fsck and a second check find nothing. Repairs can be undone, and
//! interrupted at every write.

use crate::corpus::{corpus_files, unpack};
use crate::damage::{EXT2, WITH_DEBUGFS};
use crate::survivors::tree;
use crate::testbed::{complains, debugfs, e2fsck, examine, list, run, volume};
use extant_block::{Bio, Claim, Device, IoError, IoErrorKind, Limits, MemDevice, Op};
use extant_check::Options;
use extant_check::repair::{Guard, Plan, Policy, Target, UndoError, UndoFile, UndoState, plan};
use extant_rt::Rt;
use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};

pub(crate) fn rt() -> &'static Rt {
    static RT: OnceLock<Rt> = OnceLock::new();
    RT.get_or_init(|| Rt::real(Default::default()))
}

/// Some day in 2096, so that no time is in the future.
pub(crate) const NOW: i64 = 4_000_000_000;

/// Plans the repair of a volume in memory.
pub(crate) fn planned(bytes: &[u8], policy: Policy) -> Result<Plan, String> {
    let device = Arc::new(MemDevice::from_bytes(bytes.to_vec()));
    let options = Options { now: Some(NOW), ..Options::default() };
    rt().block_on(plan(rt(), device, options, policy)).unwrap().map_err(|error| error.to_string())
}

/// Carries out a plan; returns the volume and the undo file.
pub(crate) fn applied(bytes: &[u8], plan: &Plan) -> (Vec<u8>, MemDevice) {
    let device = MemDevice::from_bytes(bytes.to_vec());
    let undo = MemDevice::new(usize::try_from(plan.undo_bytes()).unwrap());
    rt().block_on(carry_out(plan, &device, &undo)).unwrap().unwrap();
    (device.to_bytes(), undo)
}

pub(crate) async fn carry_out(plan: &Plan, volume: &dyn Device, undo: &dyn Device) -> Result<(), UndoError> {
    let mut file = plan.prepare(volume, Target::default(), undo).await?;
    plan.apply(volume, &mut file, undo, &Guard::unshared(rt())).await
}

/// Undoes a repair; returns whether there was anything to put back.
pub(crate) fn undone(volume: &dyn Device, undo: &dyn Device, target: Target) -> Result<bool, UndoError> {
    rt().block_on(async {
        UndoFile::read(undo).await?.undo(volume, undo, target, &Guard::unshared(rt())).await
    })
    .unwrap()
}

pub(crate) fn steps(plan: &Plan) -> String {
    let lines = plan.steps.iter().map(|step| {
        format!("  {} {:?}: {}: {}; loses {:?}", step.code, step.spot, step.found, step.action, step.lost)
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns what is wrong with the repair of a volume, if anything.
fn judge(name: &str, bytes: &[u8], image: &std::path::Path) -> Option<String> {
    repaired(name, bytes, image).err()
}

/// Returns a volume after its repair, or what is wrong with the repair. The volume is also left in
/// `image`.
pub(crate) fn repaired(name: &str, bytes: &[u8], image: &std::path::Path) -> Result<Vec<u8>, String> {
    let plan = planned(bytes, Policy::All).map_err(|error| format!("{name}: {error}"))?;
    if !plan.is_complete() {
        let left = list(&plan.after);
        return Err(format!("{name}: left after {} checks:\n{left}\nsteps:\n{}", plan.checks, steps(&plan)));
    }
    let (after, undo) = applied(bytes, &plan);
    fs::write(image, &after).unwrap();
    let theirs = e2fsck(image);
    if complains(&theirs) {
        let (exit, said) = theirs;
        return Err(format!("{name}: e2fsck ends with {exit}: {said}\nsteps:\n{}", steps(&plan)));
    }
    let again = examine(after.clone()).unwrap();
    if again.findings.iter().any(|finding| {
        plan.left().all(|left| left.code != finding.code) && !plan.after.findings.contains(finding)
    }) {
        return Err(format!("{name}: a second check finds\n{}", list(&again)));
    }
    let device = MemDevice::from_bytes(after.clone());
    let file = rt().block_on(UndoFile::read(&undo)).unwrap().unwrap();
    assert_eq!(file.state(), UndoState::Done);
    assert!(plan.blocks() == 0 || undone(&device, &undo, Target::default()).unwrap());
    match device.to_bytes() == bytes {
        true => Ok(after),
        false => Err(format!("{name}: undone, it differs from what it was")),
    }
}

#[test]
fn each_damage_is_repaired_and_can_be_undone() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let ext4 = fs::read(volume(folder.path(), "ext4", 6 << 10, crate::damage::EXT4)).unwrap();
    let ext2 = fs::read(volume(folder.path(), "ext2", 6 << 10, EXT2)).unwrap();
    let image = folder.path().join("image");
    let mut wrong = Vec::new();
    for (options, commands, _) in WITH_DEBUGFS {
        fs::write(&image, if options == EXT2 { &ext2 } else { &ext4 }).unwrap();
        debugfs(&image, commands);
        let bytes = fs::read(&image).unwrap();
        wrong.extend(judge(&format!("{commands:?}"), &bytes, &image));
    }
    assert!(wrong.is_empty(), "{} wrong\n{}", wrong.len(), wrong.join("\n\n"));
}

/// Damage of many kinds at once, in 6 MiB.
pub(crate) fn wreck(folder: &std::path::Path) -> Vec<u8> {
    let image = volume(folder, "wreck", 6 << 10, crate::damage::EXT4);
    debugfs(
        &image,
        &[
            "sif /file links_count 5",
            "clri /dir/inner",
            "unlink /short",
            "freeb 5 300",
            "sif /large blocks 77",
            "unlink /many",
            "set_bg 0 free_blocks_count 3",
            "set_bg 1 checksum 1",
        ],
    );
    fs::read(image).unwrap()
}

#[test]
fn what_loses_nothing_is_safe_and_the_rest_is_not_begun() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bytes = wreck(folder.path());
    let safe = planned(&bytes, Policy::Safe).unwrap();
    assert!(!safe.is_complete());
    assert_eq!(safe.left().map(|left| left.code.as_str()).collect::<Vec<_>>(), ["entry-unused-inode"]);
    let all = planned(&bytes, Policy::All).unwrap();
    assert!(all.is_complete(), "{}", list(&all.after));
    let lost: Vec<_> = all.steps.iter().filter(|step| !step.lost.is_empty()).collect();
    assert_eq!(lost.len(), 1, "{}", steps(&all));
    assert!(lost[0].lost.contains("inner"), "{}", lost[0].lost);
}

/// A device that fails after this many writes and flushes; several devices can share the count.
#[derive(Debug)]
struct Dying {
    inner: Arc<MemDevice>,
    left: Arc<AtomicI64>,
}

impl Device for Dying {
    fn limits(&self) -> &Limits {
        self.inner.limits()
    }

    fn submit(&self, bio: Bio) {
        if bio.op != Op::Read && self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            return bio.end_as("memory", Err(IoErrorKind::Gone("the power failed".into())));
        }
        self.inner.submit(bio);
    }

    fn claim(&self) -> Result<Claim, IoError> {
        self.inner.claim()
    }
}

#[test]
fn a_repair_can_be_interrupted_at_every_write() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let before = wreck(folder.path());
    let plan = planned(&before, Policy::All).unwrap();
    let (after, _) = applied(&before, &plan);
    let undo_bytes = usize::try_from(plan.undo_bytes()).unwrap();
    let mut states = Vec::new();
    for cut in 0.. {
        let left = Arc::new(AtomicI64::new(cut));
        let (volume, undo) =
            (Arc::new(MemDevice::from_bytes(before.clone())), Arc::new(MemDevice::new(undo_bytes)));
        let dying = |inner: &Arc<MemDevice>| Dying { inner: inner.clone(), left: left.clone() };
        let done = rt().block_on(carry_out(&plan, &dying(&volume), &dying(&undo))).unwrap();
        if done.is_ok() {
            assert_eq!(volume.to_bytes(), after);
            break;
        }
        let read = rt().block_on(UndoFile::read(&*undo)).unwrap();
        let file = match read {
            Ok(file) => file,
            Err(error) => {
                assert!(matches!(error, UndoError::Empty), "{error}");
                assert!(volume.to_bytes() == before, "cut {cut}: written before the undo file was there");
                continue;
            }
        };
        states.push(file.state());
        // Interrupt the undoing, too.
        left.store(cut % 7, Ordering::Relaxed);
        let _ = undone(&dying(&volume), &dying(&undo), Target::default());
        undone(&*volume, &*undo, Target::default()).unwrap();
        assert!(volume.to_bytes() == before, "cut {cut}: not as before the repair");
        let file = rt().block_on(UndoFile::read(&*undo)).unwrap().unwrap();
        assert_eq!(file.state(), UndoState::Undone);
    }
    assert!(states.contains(&UndoState::Open));
}

/// mke2fs keeps the beginning of a file of zeros in its inode, and leaves its size. Linux reads
/// zeros behind it, and e2fsck finds nothing wrong.
#[test]
fn a_file_that_is_larger_than_its_inode_keeps_its_size() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = &["-t", "ext4", "-b", "1024", "-O", "inline_data,^has_journal"];
    let image = volume(folder.path(), "inline", 4 << 10, options);
    let zeros = folder.path().join("zeros");
    fs::write(&zeros, [0; 5305]).unwrap();
    debugfs(&image, &[&format!("write {} zeros", zeros.display())]);
    let bytes = fs::read(&image).unwrap();
    let plan = planned(&bytes, Policy::Safe).unwrap();
    assert!(plan.is_complete(), "{}", list(&plan.after));
    assert_eq!(plan.steps.iter().map(|step| step.code.as_str()).collect::<Vec<_>>(), ["inline-size"]);
    fs::write(&image, applied(&bytes, &plan).0).unwrap();
    assert!(!complains(&e2fsck(&image)));
    let stat = run("debugfs", &["-R", "stat /zeros", image.to_str().unwrap()]);
    assert!(stat.contains("Size: 5305"), "{stat}");
}

/// e2fsck frees such files. The directory here has its entries in its inode, and the files have
/// their contents there.
#[test]
fn files_that_lost_their_counts_of_links_are_kept() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = &["-t", "ext4", "-b", "1024", "-O", "inline_data,^has_journal", "-N", "512"];
    let image = volume(folder.path(), "inline", 2 << 10, options);
    let names: Vec<String> = (0..300).map(|n| format!("mknod many/{n} p")).collect();
    debugfs(&image, &names.iter().map(String::as_str).collect::<Vec<_>>());
    let _ = extant_testbed::command("e2fsck").arg("-fy").arg(&image).output().unwrap();
    let whole = tree(fs::read(&image).unwrap());
    let stat = run("debugfs", &["-R", "stat /dir", image.to_str().unwrap()]);
    assert!(stat.contains("Flags: 0x10000000"), "a directory in its inode: {stat}");
    let mut lost: Vec<String> = (0..300).map(|n| format!("sif /many/{n} links_count 0")).collect();
    // The last one is a directory in its inode, with nothing in it.
    lost.extend(["/dir/inner", "/dir/sub"].map(|path| format!("sif {path} links_count 0")));
    debugfs(&image, &lost.iter().map(String::as_str).collect::<Vec<_>>());
    let bytes = fs::read(&image).unwrap();
    let after = repaired("links", &bytes, &image).unwrap_or_else(|said| panic!("{said}"));
    assert_eq!(tree(after), whole);
}

/// Volumes of the corpus that this crate does not repair, and why.
const NOT_REPAIRED: [(&str, &str); 10] = [
    ("f_bad_encryption", "e2fsck clears what is encrypted without a key; the ciphertext is kept"),
    ("f_boundscheck", "no copy tells where an inode table is; e2fsck gives up, too"),
    ("f_crashdisk", "no superblock; e2fsck gives up, too"),
    ("f_desc_size_zero", "no superblock; e2fsck gives up, too"),
    ("f_detect_junk", "no volume"),
    ("f_detect_xfs", "no volume of this family"),
    ("f_ea_inode_fast_symlink", "e2fsck is wrong: it takes the target of a short link for block numbers"),
    ("f_ea_inode_self_ref", "data in an inode without room for attributes"),
    ("f_ext_journal", "journals on other devices are not looked at"),
    ("j_recover_fast_commit", "fast commits are replayed by Linux only, and not given up"),
];

#[test]
fn the_corpus_is_repaired() {
    let only = std::env::var("EXTANT_CORPUS_ONLY").unwrap_or_default();
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (name, file) in corpus_files() {
        let Some(bytes) = unpack(&file) else { continue };
        if NOT_REPAIRED.iter().any(|(known, _)| *known == name) || !name.contains(&only) {
            continue;
        }
        count += 1;
        fs::write(&image, &bytes).unwrap();
        let found = judge(&name, &bytes, &image);
        // To compare trees with those that e2fsck leaves.
        if let Some(out) = std::env::var_os("EXTANT_CORPUS_OUT") {
            let file = file.file_name().unwrap().to_str().unwrap();
            fs::copy(&image, PathBuf::from(out).join(format!("{name}.{file}"))).unwrap();
        }
        println!("{name}: {}", if found.is_none() { "repaired" } else { "NOT" });
        wrong.extend(found);
    }
    println!("{count} volumes");
    assert!(wrong.is_empty(), "{} of {count} volumes\n{}", wrong.len(), wrong.join("\n\n"));
}

/// A repair keeps every file that e2fsck keeps.
#[test]
fn nothing_is_lost_that_e2fsck_keeps() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let bytes = wreck(folder.path());
    let plan = planned(&bytes, Policy::All).unwrap();
    let (after, _) = applied(&bytes, &plan);
    let (ours, theirs) = (folder.path().join("ours"), folder.path().join("theirs"));
    fs::write(&ours, after).unwrap();
    fs::write(&theirs, &bytes).unwrap();
    let _ = extant_testbed::command("e2fsck").arg("-fy").arg(&theirs).output().unwrap();
    let listed = |image: &std::path::Path| {
        let list = |path: &str| run("debugfs", &["-R", &format!("ls -p {path}"), image.to_str().unwrap()]);
        ["/", "/lost+found", "/dir", "/lost+found/#17"].map(|path| {
            let mut lines: Vec<String> = list(path).lines().map(str::to_owned).collect();
            lines.sort();
            lines
        })
    };
    assert_eq!(listed(&ours), listed(&theirs));
}
