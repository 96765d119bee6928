//! Directories that form a cycle, have two names or the wrong size on a damaged volume: changes are
//! refused, and nothing is lost.

use crate::testbed::{Ran, debugfs, extant, extant_with, have, mke2fs, noise, place, run};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn have_tools() -> bool {
    ["mke2fs", "debugfs", "e2fsck"].iter().all(|tool| have(tool))
}

/// A volume with files at `paths`, each with different contents.
fn volume(dir: &Path, options: &[&str], paths: &[&str]) -> PathBuf {
    let source = dir.join("source");
    for (n, path) in paths.iter().enumerate() {
        let path = source.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, noise(n as u64 + 1, 3000)).unwrap();
    }
    let image = dir.join("image");
    let mut args = vec!["-d", source.to_str().unwrap()];
    args.extend(options);
    mke2fs(&image, "4M", &args);
    image
}

/// Like [`volume`], with a hundred names in `/many`, which has a hash tree if the volume supports
/// it.
fn with_many(dir: &Path, options: &[&str]) -> PathBuf {
    let names: Vec<String> = (0..100).map(|n| format!("many/a-name-of-some-length-{n}")).collect();
    let mut paths: Vec<&str> = names.iter().map(String::as_str).collect();
    paths.extend(["keep/file", "keep/other"]);
    let image = volume(dir, options, &paths);
    // A fixed seed, so that the same names share a leaf each time.
    debugfs(&image, &["ssv hash_seed 0f0e0d0c-0b0a-0908-0706-050403020100".to_owned()]);
    Command::new("e2fsck").args(["-fyD", image.to_str().unwrap()]).output().unwrap();
    image
}

fn exits_with(code: i32, ran: Ran, what: &dyn std::fmt::Debug) -> Ran {
    assert_eq!(ran.code, Some(code), "{what:?}: {}", ran.stderr);
    ran
}

/// The volume's files by path after e2fsck, which moves those without a directory to `lost+found`.
fn mended(image: &Path) -> BTreeMap<String, Vec<u8>> {
    let copy = image.with_extension("mended");
    fs::copy(image, &copy).unwrap();
    let path = copy.to_str().unwrap();
    // Some repairs lead to further ones.
    let mends = || Command::new("e2fsck").args(["-fy", path]).output().unwrap().status.code() != Some(0);
    let rounds = (0..4).take_while(|_| mends()).count();
    assert!(rounds < 4, "e2fsck finds no end");
    let out = image.with_extension("out");
    let _ = fs::remove_dir_all(&out);
    extant(["cp", &place(&copy, "/"), out.to_str().unwrap()]).clean();
    let (mut files, mut todo) = (BTreeMap::new(), vec![out.clone()]);
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => todo.push(path),
                false => {
                    let name = path.strip_prefix(&out).unwrap().to_str().unwrap().to_owned();
                    files.insert(name, fs::read(path).unwrap());
                }
            }
        }
    }
    files
}

#[test]
fn a_circle_of_directories_is_refused_by_all_that_go_down_it() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = volume(dir.path(), &["-t", "ext4"], &["a/b/file", "a/other", "keep/file"]);
    debugfs(&image, &["link /a /a/b/up".to_owned()]);
    let (damaged, before) = (fs::read(&image).unwrap(), mended(&image));
    assert_eq!(before.len(), 3);
    let layer = |name: &str| {
        let (tree, archive) = (dir.path().join("layer"), dir.path().join(format!("layer{name}.tar")));
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b").join(name), "").unwrap();
        run("tar", &["-C", tree.to_str().unwrap(), "-cf", archive.to_str().unwrap(), &format!("a/b/{name}")]);
        archive.to_str().unwrap().to_owned()
    };
    let (layer, opaque) = (layer(".wh.up"), layer(".wh..wh..opq"));
    let file = dir.path().join("a-file");
    fs::create_dir_all(&file).unwrap();
    fs::write(file.join("a"), "").unwrap();
    let (copy, archive) = (dir.path().join("copy"), dir.path().join("out.tar"));
    let (a, up, root) = (place(&image, "/a"), place(&image, "/a/b/up"), place(&image, "/"));
    let kept: &[&[&str]] = &[
        &["rm", "-r", &up],
        &["chmod", "-R", "700", &a],
        &["chown", "-R", "7:7", &a],
        &["mv", &up, &place(&image, "/away")],
        &["mkdir", &place(&image, "/a/b/up/new")],
        &["build", "--layers", "--into", &root, &layer],
        &["cp", &a, copy.to_str().unwrap()],
        &["export", &a, "-o", archive.to_str().unwrap()],
        &["ls", "-R", &a],
        &["tree", &a],
    ];
    for command in kept {
        fs::write(&image, &damaged).unwrap();
        exits_with(3, extant(*command), command);
        let after = mended(&image);
        assert!(before.iter().all(|(path, bytes)| after.get(path) == Some(bytes)), "{command:?}: {after:?}");
    }
    // These affect all of it.
    let script = b"rm -r /a\n";
    for named in [
        &["rm", "-r", &a][..],
        &["build", "--into", &root, file.to_str().unwrap()],
        &["build", "--layers", "--into", &root, &opaque],
    ] {
        fs::write(&image, &damaged).unwrap();
        exits_with(3, extant(named), &named);
        assert_eq!(mended(&image)["keep/file"], before["keep/file"], "{named:?}");
    }
    for batch in [&["edit", image.to_str().unwrap()][..], &["shell", "--write", image.to_str().unwrap()]] {
        fs::write(&image, &damaged).unwrap();
        exits_with(3, extant_with(script, batch), &batch);
        assert_eq!(mended(&image)["keep/file"], before["keep/file"], "{batch:?}");
    }
}

#[test]
fn what_a_directory_holds_is_not_removed_by_its_second_name() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let paths = ["real/sub/file", "real/other", "other/file"];
    let image = volume(dir.path(), &["-t", "ext4"], &paths);
    // In another directory, and next to the first name.
    debugfs(&image, &["link /real /other/second".to_owned(), "link /real/sub /real/twin".to_owned()]);
    let (damaged, before) = (fs::read(&image).unwrap(), mended(&image));
    let (second, twin) = (place(&image, "/other/second"), place(&image, "/real/twin"));
    let file = dir.path().join("f");
    fs::write(&file, "f").unwrap();
    let commands: &[&[&str]] = &[
        &["rm", "-r", &second],
        &["rm", "-r", &twin],
        &["rm", "-r", &place(&image, "/real/sub")],
        &["mv", &second, &place(&image, "/away")],
        &["mv", &twin, &place(&image, "/away")],
        &["mv", &twin, &place(&image, "/real/third")],
        &["put", file.to_str().unwrap(), &place(&image, "/other/second/new")],
        &["mkdir", &place(&image, "/other/second/new")],
        &["rm", &place(&image, "/other/second/other")],
        &["chmod", "-R", "700", &second],
        &["chmod", "-R", "700", &place(&image, "/real")],
    ];
    for command in commands {
        fs::write(&image, &damaged).unwrap();
        exits_with(3, extant(*command), command);
        assert_eq!(mended(&image), before, "{command:?}");
    }
    // A directory with one name can still be moved and removed.
    fs::write(&image, &damaged).unwrap();
    extant(["mkdir", "-p", &place(&image, "/other/x/y")]).clean();
    extant(["mv", &place(&image, "/other/x"), &place(&image, "/x")]).clean();
    extant(["rm", "-r", &place(&image, "/x")]).clean();
    assert_eq!(mended(&image), before);
}

#[test]
fn a_directory_is_as_long_as_its_map_or_damaged() {
    if !have_tools() {
        return;
    }
    let kinds: [&[&str]; 4] = [
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "1024", "-O", "^dir_index"],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext3", "-b", "1024", "-O", "^dir_index"],
    ];
    for options in kinds {
        let dir = tempfile::tempdir().unwrap();
        let image = with_many(dir.path(), options);
        let (whole, before) = (fs::read(&image).unwrap(), mended(&image));
        assert_eq!(before.len(), 102);
        let names = extant(["ls", &place(&image, "/many")]).clean_text();
        for size in [0, 1024, 1500, 3072, 1 << 20] {
            fs::write(&image, &whole).unwrap();
            debugfs(&image, &[format!("sif /many size {size}")]);
            let damaged = fs::read(&image).unwrap();
            let listed = exits_with(3, extant(["ls", &place(&image, "/many")]), &(options, size));
            assert_eq!(String::from_utf8(listed.stdout).unwrap(), names, "{options:?}, size {size}");
            let new = place(&image, "/many/new");
            let source = dir.path().join("source/keep/file");
            let first = place(&image, "/many/a-name-of-some-length-1");
            let commands: &[&[&str]] = &[
                &["mkdir", &new],
                &["put", source.to_str().unwrap(), &new],
                &["rm", "-r", &place(&image, "/many")],
                &["rm", &first],
                &["mv", &place(&image, "/many"), &place(&image, "/keep")],
                &["mv", &first, &place(&image, "/keep/moved")],
                &["ln", &place(&image, "/keep/file"), &new],
                &["chmod", "-R", "700", &place(&image, "/many")],
            ];
            for command in commands {
                fs::write(&image, &damaged).unwrap();
                exits_with(3, extant(*command), &(command, size));
                // e2fsck extends the directory, and shortens it by its holes.
                debugfs(&image, &[format!("sif /many size {}", size_of(&whole, &image))]);
                assert_eq!(mended(&image), before, "{options:?}, size {size}: {command:?}");
            }
        }
    }
}

/// The size of `/many` on a volume.
fn size_of(whole: &[u8], image: &Path) -> u64 {
    let copy = image.with_extension("whole");
    fs::write(&copy, whole).unwrap();
    let told = run("debugfs", &["-R", "stat /many", copy.to_str().unwrap()]);
    let size = told.split("Size: ").nth(1).unwrap().split_whitespace().next().unwrap();
    size.parse().unwrap()
}

#[test]
fn a_directory_begins_with_the_dots_or_is_damaged() {
    if !have_tools() {
        return;
    }
    for options in
        [&["-t", "ext4", "-O", "^metadata_csum"][..], &["-t", "ext4", "-O", "^metadata_csum,inline_data"]]
    {
        let dir = tempfile::tempdir().unwrap();
        let image = volume(dir.path(), options, &["d/file", "keep/file"]);
        let (whole, before) = (fs::read(&image).unwrap(), mended(&image));
        let is_inline = options[3].contains("inline_data");
        let at = match is_inline {
            true => None,
            false => {
                let block = run("debugfs", &["-R", "blocks /d", image.to_str().unwrap()]);
                let block = block.lines().find_map(|line| line.trim().parse::<usize>().ok()).unwrap();
                Some(block * block_bytes(&image))
            }
        };
        let changes: Vec<(usize, u8)> = match at {
            // The inode of `.`, its name, the inode of `..`, its name.
            Some(at) => vec![(at, 2), (at + 8, b'x'), (at + 12, 0), (at + 20, b'x')],
            None => vec![],
        };
        for (at, byte) in changes {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            for command in [
                &["ls", &place(&image, "/d")][..],
                &["mkdir", &place(&image, "/d/new")],
                &["rm", "-r", &place(&image, "/d")],
                &["chmod", "-R", "700", &place(&image, "/d")],
                &["mv", &place(&image, "/d/file"), &place(&image, "/keep/moved")],
            ] {
                fs::write(&image, &damaged).unwrap();
                exits_with(3, extant(command), &(command, at, byte));
                assert_eq!(mended(&image), before, "{command:?}");
            }
        }
        if is_inline {
            debugfs(&image, &["sif /d size 30".to_owned()]);
            for command in [&["ls", &place(&image, "/d")][..], &["mkdir", &place(&image, "/d/new")]] {
                exits_with(3, extant(command), &command);
            }
        }
    }
}

fn block_bytes(image: &Path) -> usize {
    let told = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
    let line = told.lines().find(|line| line.starts_with("Block size:")).unwrap();
    line.split_whitespace().last().unwrap().parse().unwrap()
}

#[test]
fn a_name_that_its_hash_does_not_find_gets_no_second_entry() {
    if !have_tools() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let image = with_many(dir.path(), &["-t", "ext4", "-b", "1024", "-O", "^metadata_csum"]);
    let source = dir.path().join("source/keep/file");
    let source = source.to_str().unwrap();
    let whole = fs::read(&image).unwrap();
    let names = extant(["ls", &place(&image, "/many")]).clean_text();
    let is_refused = |name: &str, names: &str| {
        let target = place(&image, &format!("/many/{name}"));
        let damaged = fs::read(&image).unwrap();
        for command in [
            &["put", source, &target][..],
            &["mkdir", &target],
            &["ln", &place(&image, "/keep/file"), &target],
            &["ln", "-s", "x", &target],
            &["mv", &place(&image, "/keep/file"), &target],
            &["build", "--into", &place(&image, "/many"), dir.path().join("one").to_str().unwrap()],
        ] {
            fs::write(&image, &damaged).unwrap();
            exits_with(3, extant(command), &command);
            let listed = extant(["ls", &place(&image, "/many")]).stdout;
            assert_eq!(String::from_utf8(listed).unwrap(), names, "{command:?}");
        }
        // Reading detects it.
        exits_with(3, extant(["cat", &target]), &target);
    };
    let one = dir.path().join("one");
    fs::create_dir(&one).unwrap();
    fs::write(one.join("a-name-of-some-length-42"), "one").unwrap();
    debugfs(&image, &["ssv hash_seed 12345678-1234-1234-1234-123456789012".to_owned()]);
    is_refused("a-name-of-some-length-42", &names);
    // The last letter of a name is changed, so its hash may lead elsewhere.
    let wanted = b"a-name-of-some-length-42";
    let mut refused = 0;
    for letter in b'a'..=b'y' {
        let mut damaged = whole.clone();
        let at = damaged.windows(wanted.len()).position(|window| window == wanted).unwrap();
        damaged[at + wanted.len() - 1] = letter;
        fs::write(&image, &damaged).unwrap();
        let name = format!("a-name-of-some-length-4{}", letter as char);
        let listed = String::from_utf8(extant(["ls", &place(&image, "/many")]).stdout).unwrap();
        assert!(listed.contains(&name));
        let ran = extant(["mkdir", &place(&image, &format!("/many/{name}"))]);
        // If found, it exists.
        assert!(matches!(ran.code, Some(1 | 3)), "{name}: {ran:?}");
        refused += u32::from(ran.code == Some(3));
        assert_eq!(String::from_utf8(extant(["ls", &place(&image, "/many")]).stdout).unwrap(), listed);
    }
    assert!(refused > 10, "{refused} of 25 lay elsewhere");
}

#[test]
fn changes_of_indexed_directories_that_are_not_supported_leave_no_trace() {
    if !have_tools() {
        return;
    }
    // EXT4_ENCRYPT_FL and EXT4_CASEFOLD_FL, with EXT4_INDEX_FL and EXT4_EXTENTS_FL.
    for (flags, feature) in [(0x8_1800_u32, "encrypt"), (0x4008_1000, "casefold")] {
        let dir = tempfile::tempdir().unwrap();
        let image = with_many(dir.path(), &["-t", "ext4", "-b", "1024", "-O", feature]);
        debugfs(&image, &[format!("sif /many flags {flags}")]);
        let (source, keep) = (dir.path().join("source/keep/file"), dir.path().join("source/keep"));
        let (clean, many) = (fs::read(&image).unwrap(), place(&image, "/many"));
        let file = place(&image, "/many/a-name-of-some-length-7");
        let state = |image: &Path| {
            let told = run("dumpe2fs", &["-h", image.to_str().unwrap()]);
            let lines =
                told.lines().filter(|line| line.contains("ilesystem state") || line.contains("rror count"));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let before = state(&image);
        assert!(before[0].ends_with("clean"), "{before:?}");
        let commands: &[&[&str]] = &[
            &["mkdir", &place(&image, "/many/new")],
            &["put", source.to_str().unwrap(), &place(&image, "/many/new")],
            &["rm", &file],
            &["rm", "-r", &many],
            &["mv", &file, &place(&image, "/keep/moved")],
            &["mv", &place(&image, "/keep/file"), &place(&image, "/many/moved")],
            &["ln", &place(&image, "/keep/file"), &place(&image, "/many/new")],
            &["truncate", "-s", "1", &place(&image, "/many/new")],
            &["build", "--into", &many, keep.to_str().unwrap()],
        ];
        for command in commands {
            fs::write(&image, &clean).unwrap();
            let ran = exits_with(4, extant(*command), command);
            let named = ["an encrypted directory", "a directory with casefold"];
            assert!(named.iter().any(|name| ran.stderr.contains(name)), "{command:?}: {}", ran.stderr);
            assert_eq!(state(&image), before, "{command:?}");
            assert_eq!(extant(["ls", &many]).clean(), {
                fs::write(&image, &clean).unwrap();
                extant(["ls", &many]).clean()
            });
        }
        // The directory's own name is in another directory, so it can change.
        fs::write(&image, &clean).unwrap();
        extant(["mv", &many, &place(&image, "/keep/many")]).clean();
        assert_eq!(extant(["ls", &place(&image, "/keep/many")]).clean_text().lines().count(), 100);
        let told = run("debugfs", &["-R", "ls -l /keep/many", image.to_str().unwrap()]);
        let parent =
            told.lines().find(|line| line.ends_with(" ..")).unwrap().split_whitespace().next().unwrap();
        let keep = run("debugfs", &["-R", "stat /keep", image.to_str().unwrap()]);
        assert!(keep.contains(&format!("Inode: {parent} ")), "{told} {keep}");
        assert_eq!(state(&image), before);
    }
}
