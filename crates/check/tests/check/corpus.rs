//! Damaged volumes from outside the project, in the folder that `EXTANT_CORPUS` names.

use crate::testbed::{complains, e2fsck, examine, is_known_to_e2fsck, list};
use flate2::read::MultiGzDecoder;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

/// Volumes about which e2fsck -fn and this crate disagree, and why.
const DIFFERENCES: [(&str, &str); 9] = [
    ("f_ea_inode_dir_ref", "e2fsck -n is silent about a name of an attribute's value"),
    ("f_ea_inode_spurious_flag_dir", "e2fsck 1.47.0 is silent about a directory with that flag"),
    ("f_ea_inode_fast_symlink", "e2fsck is wrong: it takes the target of a short link for block numbers"),
    ("f_ext_journal", "journals on other devices are not looked at"),
    ("f_jnl_64bit", "e2fsck -n ignores the log"),
    ("f_orphan", "files deleted while open are no damage"),
    ("f_orphquot", "files deleted while open are no damage"),
    ("j_recover_csum2_64bit", "e2fsck -n ignores the log; it agrees once that is replayed"),
    ("j_recover_csum2_32bit", "e2fsck -n ignores the log; it agrees once that is replayed"),
];

pub(crate) fn unpack(file: &Path) -> Option<Vec<u8>> {
    let name = file.file_name()?.to_str()?;
    let mut bytes = Vec::new();
    if name.contains(".tar") || file.is_dir() {
        return None;
    } else if name.ends_with(".gz") {
        MultiGzDecoder::new(File::open(file).unwrap()).read_to_end(&mut bytes).unwrap();
    } else if name.ends_with(".bz2") {
        let output = extant_testbed::command("bzip2").arg("-dc").arg(file).output().unwrap();
        bytes = output.stdout;
    } else if file.metadata().unwrap().len() >= 64 << 10 {
        bytes = fs::read(file).unwrap();
    } else {
        return None;
    }
    // Larger volumes take long without optimisation.
    (bytes.len() <= 300 << 20).then_some(bytes)
}

/// Returns the files of the corpus in order, each with the name of its folder; none if the corpus
/// or a tool is missing.
pub(crate) fn corpus_files() -> Vec<(String, PathBuf)> {
    let Some(corpus) = std::env::var_os("EXTANT_CORPUS") else {
        println!("skipped: EXTANT_CORPUS names no folder of damaged volumes");
        return Vec::new();
    };
    if !extant_testbed::have(&["e2fsck", "bzip2"]) {
        return Vec::new();
    }
    let within = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        paths
    };
    let folders = within(Path::new(&corpus)).into_iter().filter(|path| path.is_dir());
    let named = |folder: PathBuf| {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        within(&folder).into_iter().map(move |file| (name.clone(), file))
    };
    // Such as `2/3`: every third file, beginning with index 2.
    let part = std::env::var("EXTANT_CORPUS_PART").unwrap_or_else(|_| "0/1".into());
    let (first, every) = part.split_once('/').expect("EXTANT_CORPUS_PART is written as 2/3");
    let (first, every) = (first.parse().unwrap(), every.parse().unwrap());
    folders.flat_map(named).skip(first).step_by(every).collect()
}

#[test]
fn e2fsck_agrees_about_the_corpus() {
    let scratch = tempfile::tempdir().unwrap();
    let image = scratch.path().join("image");
    let (mut wrong, mut count) = (Vec::new(), 0);
    for (name, file) in corpus_files() {
        let Some(bytes) = unpack(&file) else { continue };
        count += 1;
        fs::write(&image, &bytes).unwrap();
        let theirs = e2fsck(&image);
        let (known, shown) = match examine(bytes) {
            Ok(checked) => (checked.counts.keys().any(|&code| is_known_to_e2fsck(code)), list(&checked)),
            Err(error) => (true, error.to_string()),
        };
        let differs = DIFFERENCES.iter().any(|(known, _)| *known == name);
        // A folder may hold several volumes, only one of which differs.
        if known != complains(&theirs) && !differs {
            let (exit, said) = theirs;
            wrong.push(format!("== {name}: e2fsck ends with {exit}: {said}\nours:\n{shown}\n"));
        }
    }
    println!("{count} volumes");
    assert!(wrong.is_empty(), "{} disagreements\n{}", wrong.len(), wrong.join("\n"));
}
