//! Indexes of directories.

use crate::repairs::{planned, repaired, steps};
use crate::survivors::tree;
use crate::testbed::{inode, number, run, u32_at};
use extant_check::repair::Policy;
use extant_format::InodeFlags;
use std::fs;

const SUMS: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^has_journal", "-N", "192"];
const PLAIN: &[&str] = &["-t", "ext4", "-b", "1024", "-O", "^has_journal,^metadata_csum", "-N", "192"];

#[test]
fn indexes_are_built_anew() {
    if !extant_testbed::have(&["mke2fs", "e2fsck", "debugfs"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    // Enough leaves to give the index two levels.
    let names = folder.path().join("names");
    fs::create_dir_all(names.join("deep")).unwrap();
    fs::write(names.join("file"), "").unwrap();
    for n in 0..600 {
        fs::hard_link(names.join("file"), names.join(format!("deep/{n:03}{}", "n".repeat(240)))).unwrap();
    }
    for options in [SUMS, PLAIN] {
        let image = folder.path().join("deep");
        let mut args = vec!["-q", "-F", "-d", names.to_str().unwrap()];
        args.extend(options);
        args.extend([image.to_str().unwrap(), "4M"]);
        run("mke2fs", &args);
        let _ = extant_testbed::command("e2fsck").arg("-fyD").arg(&image).output().unwrap();
        let sound = fs::read(&image).unwrap();
        let deep = number(&image, "/deep");
        let root = u32_at(&sound, inode(&sound, deep) + 40 + 20) as usize * 1024;
        assert_eq!(sound[root + 30], 1, "levels of the index");
        let mut bytes = sound.clone();
        bytes[root + 44..root + 400].fill(0x5a);
        let after = repaired("index", &bytes, &image).unwrap_or_else(|said| panic!("{said}"));
        assert_eq!(tree(after.clone()), tree(sound));
        let at = inode(&after, deep);
        let flags = InodeFlags::from_bits_retain(u32_at(&after, at + 32));
        assert!(flags.contains(InodeFlags::INDEX));
        let plan = planned(&bytes, Policy::Safe).unwrap();
        assert!(plan.is_complete(), "{}", steps(&plan));
    }
}
