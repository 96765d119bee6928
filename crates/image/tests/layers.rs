//! Image layers merged over each other: whiteouts hide names of lower layers, in any order of a
//! layer's entries.

mod common;

use common::entries::{checksummed, file, header, pax, with_link};
use common::*;
use extant_image::{BuildError, BuildOptions, BuildReport, Source, Timestamp};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Parses an entry: `DIR/`, `FILE=CONTENTS`, `LINK->TARGET`, `NAME==TARGET` (a hard link), `NAME!`
/// (a device 0:0).
fn entry(line: &str) -> Vec<u8> {
    let mut block = if let Some((name, target)) = line.split_once("==") {
        return with_link(header(name.as_bytes(), b'1', 0), target.as_bytes());
    } else if let Some((name, target)) = line.split_once("->") {
        return with_link(header(name.as_bytes(), b'2', 0), target.as_bytes());
    } else if let Some((name, text)) = line.split_once('=') {
        return file(name.as_bytes(), text.as_bytes());
    } else if let Some(name) = line.strip_suffix('!') {
        return header(name.as_bytes(), b'3', 0);
    } else {
        header(line.as_bytes(), b'5', 0)
    };
    block[100..107].copy_from_slice(b"0000711");
    checksummed(block)
}

fn archive(lines: &[&str]) -> Vec<u8> {
    [lines.iter().flat_map(|line| entry(line)).collect(), vec![0; 1024]].concat()
}

/// Writes archives, and builds an image from them as layers.
struct Layers {
    dir: tempfile::TempDir,
}

impl Layers {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn image(&self) -> PathBuf {
        self.path("image")
    }

    fn sources(&self, archives: &[Vec<u8>]) -> Vec<Source> {
        let write = |(n, bytes): (usize, &Vec<u8>)| {
            let path = self.path(&format!("{n}.tar"));
            fs::write(&path, bytes).unwrap();
            Source::Tar(path)
        };
        archives.iter().enumerate().map(write).collect()
    }

    fn build(&self, sources: &[Source]) -> Result<BuildReport, BuildError> {
        let clamp_time = Some(Timestamp { seconds: 1_700_000_000, nanos: 0 });
        let built = try_build(&BuildOptions { layers: true, clamp_time, ..options(self.image()) }, sources)?;
        assert_clean(&self.image());
        Ok(built)
    }

    fn build_archives(&self, archives: &[Vec<u8>]) {
        self.build(&self.sources(archives)).unwrap();
    }

    /// The kernel's view of the image; `None` if it cannot be mounted.
    fn shape(&self) -> Option<BTreeMap<String, String>> {
        Mount::new(&self.image(), "ro").map(|mount| shape(mount.path()))
    }
}

/// Contents, targets and link counts by path, ignoring `lost+found`.
fn shape(root: &Path) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    let mut pending = vec![root.to_path_buf()];
    while let Some(dir) = pending.pop() {
        for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
            let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let meta = fs::symlink_metadata(&path).unwrap();
            let mode = meta.permissions().mode() & 0o7777;
            let seen = match meta.file_type() {
                _ if name == "lost+found" => continue,
                kind if kind.is_dir() => {
                    pending.push(path);
                    format!("directory {mode:o}")
                }
                kind if kind.is_symlink() => format!("-> {}", fs::read_link(&path).unwrap().display()),
                kind if kind.is_file() => {
                    format!("{} ({} links)", fs::read_to_string(&path).unwrap(), meta.nlink())
                }
                kind if kind.is_char_device() => "a device".to_owned(),
                _ => "something else".to_owned(),
            };
            out.insert(name, seen);
        }
    }
    out
}

fn shaped(expected: &[(&str, &str)]) -> BTreeMap<String, String> {
    expected.iter().map(|(name, seen)| ((*name).to_owned(), (*seen).to_owned())).collect()
}

const LISTED: &str = "directory 711";
const IMPLIED: &str = "directory 755";

#[test]
fn whiteouts_hide_lower_layers_only() {
    // The lower layer, the upper layer's entries in equivalent orders, and the expected result.
    type Case<'a> = (&'a [&'a str], &'a [&'a [&'a str]], &'a [(&'a str, &'a str)]);
    let cases: [Case<'_>; 21] = [
        // A directory replaced by a file, as written by umoci, and with an opaque mark.
        (&["a/", "a/f=f", "a/g=g"], &[&["a=new", "a/.wh.f=", "a/.wh.g="]], &[("a", "new (1 links)")]),
        (&["a/", "a/f=f"], &[&["a=new", "a/.wh..wh..opq="]], &[("a", "new (1 links)")]),
        // A whiteout of a name that the same layer adds.
        (&["a=old"], &[&["a=new", ".wh.a="]], &[("a", "new (1 links)")]),
        (
            &["d/", "d/old=1", "d/s/", "d/s/old=2"],
            &[&["d/", "d/s/new=n", ".wh.d="]],
            &[("d", LISTED), ("d/s", IMPLIED), ("d/s/new", "n (1 links)")],
        ),
        // An implied directory does not inherit from the lower one.
        (&["d/", "d/old=1"], &[&["d/new=n", ".wh.d="]], &[("d", IMPLIED), ("d/new", "n (1 links)")]),
        // A whiteout of an ancestor, and marks inside it.
        (
            &["d/", "d/s/", "d/s/x=1", "d/y=1"],
            &[&["d/s/.wh.x=", ".wh.d=", "d/s/.wh..wh..opq=", "d/", "d/y=2"]],
            &[("d", LISTED), ("d/y", "2 (1 links)")],
        ),
        // Opaque marks.
        (
            &["d/", "d/old=1", "d/s/", "d/s/old=2"],
            &[&["d/", "d/new=n", "d/s/", "d/s/new=n", "d/.wh..wh..opq="]],
            &[("d", LISTED), ("d/new", "n (1 links)"), ("d/s", LISTED), ("d/s/new", "n (1 links)")],
        ),
        (
            &["a=1", "d/", "d/old=1"],
            &[&["d/", "d/new=n", ".wh..wh..opq="]],
            &[("d", LISTED), ("d/new", "n (1 links)")],
        ),
        // Marks create no directories, and are harmless if there is nothing to hide.
        (&["b=b"], &[&["d/.wh.f=", "e/.wh..wh..opq=", ".wh.b/"]], &[]),
        (&["d=file"], &[&["d/.wh.f="]], &[("d", "file (1 links)")]),
        // A directory replaced by a symbolic link: the mark refers to the directory's contents.
        (
            &["a/", "a/f=f", "d/", "d/f=f"],
            &[&["a->d", "a/.wh.f=", "a/.wh..wh..opq="]],
            &[("a", "-> d"), ("d", LISTED), ("d/f", "f (1 links)")],
        ),
        // A symbolic link replaced by a directory.
        (
            &["a->d", "d/", "d/f=f"],
            &[&["a/", "a/.wh.f=", "a/g=g"]],
            &[("a", LISTED), ("a/g", "g (1 links)"), ("d", LISTED), ("d/f", "f (1 links)")],
        ),
        // A link removed, and a directory of the same name.
        (
            &["a->d", "d/", "d/f=f"],
            &[&["a/g=g", ".wh.a=", "a/.wh.f="]],
            &[("a", IMPLIED), ("a/g", "g (1 links)"), ("d", LISTED), ("d/f", "f (1 links)")],
        ),
        // Paths through a link in a lower layer.
        (
            &["a->d/e", "d/", "d/e/", "d/e/f=f"],
            &[&["a/.wh.f=", "a/g=g"]],
            &[("a", "-> d/e"), ("d", LISTED), ("d/e", LISTED), ("d/e/g", "g (1 links)")],
        ),
        // Through such a link, to a path that this layer turns into a link.
        (
            &["lib->usr/lib", "usr/", "usr/lib/", "usr/lib/old=1", "new/lib/x=1"],
            &[&["lib/so=s", "usr->new", "usr/.wh.lib="]],
            &[
                ("lib", "-> usr/lib"),
                ("usr", "-> new"),
                ("new", IMPLIED),
                ("new/lib", IMPLIED),
                ("new/lib/x", "1 (1 links)"),
                ("new/lib/so", "s (1 links)"),
            ],
        ),
        // Hard links to files that the same layer hides: the file gets another name.
        (&["a=A"], &[&["b==a", ".wh.a="]], &[("b", "A (1 links)")]),
        (
            &["d/", "d/a=A", "d/l->t"],
            &[&["b==d/a", "c==b", "m==d/l", ".wh.d="]],
            &[("b", "A (2 links)"), ("c", "A (2 links)"), ("m", "-> t")],
        ),
        (&["a=A"], &[&["b==a"]], &[("a", "A (2 links)"), ("b", "A (2 links)")]),
        // Hard links to files that the same layer adds, under a name that it hides below.
        (&["a=old"], &[&["a=new", "b==a", ".wh.a="]], &[("a", "new (2 links)"), ("b", "new (2 links)")]),
        // AUFS's private files stay out; hard links to them keep the contents.
        (
            &["a=old"],
            &[&[
                ".wh..wh.aufs=",
                ".wh..wh.orph/",
                ".wh..wh.orph/9.9=orphan",
                ".wh..wh.plnk/",
                ".wh..wh.plnk/12.34=linked",
                "a==.wh..wh.plnk/12.34",
                "b==.wh..wh.plnk/12.34",
                "d/.wh..wh.orph/",
                "d/.wh..wh.orph/7=x",
                ".wh.gone/",
                ".wh.gone/x=x",
            ]],
            &[("a", "linked (2 links)"), ("b", "linked (2 links)"), ("d", IMPLIED)],
        ),
        // Marks in overlayfs form.
        (&["a=1", "d/", "d/f=1"], &[&["a!", "d/f!", "d/g=2"]], &[("d", LISTED), ("d/g", "2 (1 links)")]),
    ];
    for (lower, uppers, expected) in cases {
        for upper in uppers {
            // In the given order, and with each entry first in turn. Links must come after their
            // targets.
            for first in 0..upper.len() {
                let mut upper = upper.to_vec();
                if !upper.iter().any(|line| line.contains("==")) {
                    upper.rotate_left(first);
                } else if upper[first].starts_with(".wh.") {
                    upper[..=first].rotate_right(1);
                }
                let layers = Layers::new();
                layers.build_archives(&[archive(lower), archive(&upper)]);
                let Some(seen) = layers.shape() else { return };
                assert_eq!(seen, shaped(expected), "{lower:?} under {upper:?}");
            }
        }
    }
}

#[test]
fn files_of_a_layer_win_over_its_unlisted_directories() {
    // The upper layer contains a name twice, because of a link in the lower one.
    for (upper, expected, told) in [
        (&["a/b/", "c=8"][..], &[("a", "-> c"), ("c", "8 (1 links)")][..], "\"/a/b\" left out"),
        (
            &["a/b/", "a/b/x=1", "c/b=8"],
            &[("a", "-> c"), ("c", IMPLIED), ("c/b", "8 (1 links)")],
            "\"/a/b\" and 1 more left out",
        ),
        (
            &["a/b=8", "c/b/x=1"],
            &[("a", "-> c"), ("c", IMPLIED), ("c/b", "8 (1 links)")],
            "\"/c/b/x\" left out",
        ),
    ] {
        let layers = Layers::new();
        let notes = layers.build(&layers.sources(&[archive(&["a->c"]), archive(upper)])).unwrap().notes;
        assert_eq!(notes.len(), 1, "{notes:?}");
        let note = notes[0].to_string();
        assert!(note.contains("1.tar\": ") && note.contains(told), "{note}");
        let Some(seen) = layers.shape() else { return };
        assert_eq!(seen, shaped(expected), "{upper:?}");
    }
}

#[test]
fn hard_links_go_through_links_of_lower_layers() {
    type Case<'a> = (&'a [&'a str], &'a [&'a str], &'a [(&'a str, &'a str)]);
    let lower = &["usr/lib/y=old", "lib->usr/lib"][..];
    let cases: [Case<'_>; 7] = [
        // The layer replaces the file under its real path, and links to it through the link.
        (
            lower,
            &["usr/lib/y=new", "lib/x==lib/y"],
            &[("usr/lib/x", "new (2 links)"), ("usr/lib/y", "new (2 links)")],
        ),
        // The other way round.
        (
            lower,
            &["lib/y=new", "usr/lib/x==usr/lib/y"],
            &[("usr/lib/x", "new (2 links)"), ("usr/lib/y", "new (2 links)")],
        ),
        // The name exists in this layer only.
        (
            lower,
            &["usr/lib/z=new", "lib/x==lib/z"],
            &[("usr/lib/x", "new (2 links)"), ("usr/lib/y", "old (1 links)"), ("usr/lib/z", "new (2 links)")],
        ),
        (
            lower,
            &["lib/d/z=new", "x==usr/lib/d/z"],
            &[
                ("usr/lib/d", IMPLIED),
                ("usr/lib/d/z", "new (2 links)"),
                ("usr/lib/y", "old (1 links)"),
                ("x", "new (2 links)"),
            ],
        ),
        // The upper layer contains nothing new.
        (lower, &["x==lib/y"], &[("usr/lib/y", "old (2 links)"), ("x", "old (2 links)")]),
        // Through two links, and where the target does not exist below.
        (
            &["usr/lib/y=old", "lib->l", "l->/usr/../usr/lib"],
            &["usr/lib/y=new", "lib/x==lib/y"],
            &[
                ("l", "-> /usr/../usr/lib"),
                ("lib", "-> l"),
                ("usr/lib/x", "new (2 links)"),
                ("usr/lib/y", "new (2 links)"),
            ],
        ),
        (
            &["lib->usr/lib"],
            &["lib/y=new", "x==usr/lib/y"],
            &[("usr/lib/y", "new (2 links)"), ("x", "new (2 links)")],
        ),
    ];
    for (lower, upper, expected) in cases {
        let layers = Layers::new();
        assert_eq!(layers.build(&layers.sources(&[archive(lower), archive(upper)])).unwrap().notes, []);
        let Some(seen) = layers.shape() else { return };
        let mut all = shaped(&[("lib", "-> usr/lib"), ("usr", IMPLIED), ("usr/lib", IMPLIED)]);
        all.extend(shaped(expected));
        assert_eq!(seen, all, "{lower:?} under {upper:?}");
    }
    // A directory that the layer lists replaces the link.
    let layers = Layers::new();
    let upper = archive(&["usr/lib/y=new", "lib/", "lib/y=own", "lib/x==lib/y"]);
    layers.build_archives(&[archive(lower), upper]);
    let Some(seen) = layers.shape() else { return };
    assert_eq!(seen["lib/x"], "own (2 links)");
}

/// Random layers with few names, so that what a name refers to changes often.
struct Random(Bytes);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        (self.0.next() % n as u64) as usize
    }

    fn pick<'a>(&mut self, from: &[&'a str]) -> &'a str {
        from[self.below(from.len())]
    }

    fn path(&mut self) -> String {
        const NAMES: [&str; 4] = ["a", "b", "c", "d"];
        let parts: Vec<_> = (0..1 + self.below(3)).map(|_| self.pick(&NAMES)).collect();
        parts.join("/")
    }

    /// Entries of a layer: every path once, and nothing below a path that is not a directory. Hard
    /// links come last.
    fn layer(&mut self, n: usize) -> Vec<String> {
        let mut entries: BTreeMap<String, String> = BTreeMap::new();
        let mut marks = Vec::new();
        let mut links = Vec::new();
        for at in 0..12 {
            let path = self.path();
            let blocks = |other: &str, line: &str| {
                let below = path.starts_with(&format!("{other}/")) && !line.ends_with('/');
                below || (other.starts_with(&format!("{path}/")))
            };
            let (dir, name) = path.rsplit_once('/').map_or(("", &path[..]), |(dir, name)| (dir, name));
            let slash = if dir.is_empty() { "" } else { "/" };
            match self.below(8) {
                0 => marks.push(format!("{dir}{slash}.wh..wh..opq=")),
                1 | 2 => marks.push(format!("{dir}{slash}.wh.{name}=")),
                _ if entries.contains_key(&path) => {}
                3 | 4
                    if !entries.iter().any(|(other, line)| {
                        path.starts_with(&format!("{other}/")) && !line.ends_with('/')
                    }) =>
                {
                    entries.insert(path.clone(), format!("{path}/"));
                }
                _ if entries.iter().any(|(other, line)| blocks(other, line)) => {}
                5 => drop(entries.insert(path.clone(), format!("{path}->{}", self.path()))),
                6 => links.push((path.clone(), self.path())),
                _ => drop(entries.insert(path.clone(), format!("{path}={n}.{at}"))),
            }
        }
        marks.sort();
        marks.dedup();
        let mut lines: Vec<String> = entries.values().cloned().chain(marks).collect();
        // Link only to files of this layer: for others, symbolic links may change which lower file
        // a path leads to.
        for (path, _) in links {
            let target = entries.iter().find(|(_, line)| line.contains('=') && !line.contains("=="));
            let free = !entries.keys().any(|other| {
                *other == path
                    || path.starts_with(&format!("{other}/"))
                    || other.starts_with(&format!("{path}/"))
            });
            if let (true, Some((target, _))) = (free, target) {
                lines.push(format!("{path}=={target}"));
                entries.insert(path.clone(), format!("{path}=="));
            }
        }
        lines
    }

    fn shuffle(&mut self, lines: &[String]) -> Vec<String> {
        let mut lines = lines.to_vec();
        for at in (1..lines.len()).rev() {
            lines.swap(at, self.below(at + 1));
        }
        // A hard link comes after its target.
        lines.sort_by_key(|line| line.contains("=="));
        lines
    }
}

#[test]
fn the_order_of_entries_means_nothing() {
    let mut built = 0;
    for seed in 1..40 {
        let mut random = Random(Bytes(seed * 0x9e37_79b9));
        let layers: Vec<_> = (0..3).map(|n| random.layer(n)).collect();
        let pack = |layers: &[Vec<String>]| -> Vec<Vec<u8>> {
            layers
                .iter()
                .map(|lines| archive(&lines.iter().map(|line| &line[..]).collect::<Vec<_>>()))
                .collect()
        };
        // Links of the layers may form cycles; in that case, no directory can be created below
        // them.
        let build = |layers: &[Vec<String>]| {
            let made = Layers::new();
            let built = made.build(&made.sources(&pack(layers)));
            let built = built.map(|_| sha256(&made.image())).map_err(|error| error.to_string());
            (built, made)
        };
        let (expected, one) = build(&layers);
        built += usize::from(expected.is_ok());
        for _ in 0..4 {
            let shuffled: Vec<_> = layers.iter().map(|lines| random.shuffle(lines)).collect();
            let (found, other) = build(&shuffled);
            let told = || {
                format!(
                    "seed {seed}: {layers:#?}\nas {shuffled:#?}: {:#?}\n{:#?}",
                    one.shape(),
                    other.shape()
                )
            };
            assert!(found == expected, "{expected:?}, {found:?}, {}", told());
        }
    }
    assert!(built > 20, "{built}");
}

/// Makes a random change in a directory.
fn change(random: &mut Random, root: &Path, n: usize) {
    let path = root.join(random.path());
    let above = path.parent().unwrap();
    // Remove whatever is in the way of a directory.
    for dir in above.ancestors().collect::<Vec<_>>().into_iter().rev() {
        if dir.starts_with(root) && !fs::symlink_metadata(dir).is_ok_and(|meta| meta.is_dir()) {
            let _ = fs::remove_file(dir);
            fs::create_dir(dir).unwrap();
        }
    }
    let there = fs::symlink_metadata(&path).ok();
    let remove = || match &there {
        Some(meta) if meta.is_dir() => fs::remove_dir_all(&path).unwrap(),
        Some(_) => fs::remove_file(&path).unwrap(),
        None => {}
    };
    match random.below(6) {
        0 | 1 => remove(),
        2 => {
            remove();
            fs::create_dir(&path).unwrap();
        }
        3 => {
            remove();
            std::os::unix::fs::symlink(random.path(), &path).unwrap();
        }
        4 if there.as_ref().is_some_and(|meta| !meta.is_dir()) => {
            let other = root.join(format!("e{n}"));
            let _ = fs::remove_file(&other);
            fs::rename(&path, other).unwrap();
        }
        _ => {
            remove();
            fs::write(&path, n.to_string()).unwrap();
        }
    }
}

/// A system whose `/bin` is a link to `/usr/bin`, to which an application's tree is added.
#[test]
fn directories_of_plain_sources_merge_with_what_links_of_earlier_ones_lead_to() {
    let base = archive(&[
        "usr/",
        "usr/bin/sh=shell",
        "bin->usr/bin",
        "lib->nowhere",
        "etc->usr/bin/sh",
        "all->.",
        "run->run",
    ]);
    let app =
        ["bin/", "bin/tool=tool", "bin/sub/", "bin/sub/x=x", "lib/", "lib/l=l", "etc/", "etc/f=f", "run/"];
    let also = ["all/top=top", "opt/also==bin/tool"];
    let expected = shaped(&[
        ("all", "-> ."),
        ("bin", "-> usr/bin"),
        ("etc", LISTED),
        ("etc/f", "f (1 links)"),
        ("lib", LISTED),
        ("lib/l", "l (1 links)"),
        ("opt", IMPLIED),
        ("opt/also", "tool (2 links)"),
        ("run", LISTED),
        ("top", "top (1 links)"),
        ("usr", LISTED),
        ("usr/bin", LISTED),
        ("usr/bin/sh", "shell (1 links)"),
        ("usr/bin/sub", LISTED),
        ("usr/bin/sub/x", "x (1 links)"),
        ("usr/bin/tool", "tool (2 links)"),
    ]);
    let layers = Layers::new();
    let tree = layers.path("app");
    for line in app {
        match line.split_once('=') {
            Some((name, text)) => fs::write(tree.join(name), text).unwrap(),
            None => {
                fs::create_dir_all(tree.join(line)).unwrap();
                fs::set_permissions(tree.join(line), fs::Permissions::from_mode(0o711)).unwrap();
            }
        }
    }
    for dir in ["opt", "all"] {
        fs::create_dir(tree.join(dir)).unwrap();
    }
    fs::write(tree.join("all/top"), "top").unwrap();
    fs::hard_link(tree.join("bin/tool"), tree.join("opt/also")).unwrap();
    let packed = layers.sources(&[base, archive(&[&app[..], &also].concat())]);
    for upper in [packed[1].clone(), Source::Directory(tree)] {
        let sources = [packed[0].clone(), upper];
        let report = try_build(&options(layers.image()), &sources).unwrap();
        assert_eq!(report.notes, [], "{sources:?}");
        assert_clean(&layers.image());
        let Some(seen) = layers.shape() else { return };
        assert_eq!(seen, expected, "{sources:?}");
    }
    // A name that occurs twice because of the link is reported.
    let twice = layers
        .sources(&[archive(&["usr/bin/sh=shell", "bin->usr/bin"]), archive(&["usr/bin/x=1", "bin/x=2"])]);
    let notes = try_build(&options(layers.image()), &twice).unwrap().notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    assert!(notes[0].to_string().contains("\"/usr/bin/x\" left out"), "{}", notes[0]);
}

#[test]
fn layers_of_umoci_give_what_it_packed() {
    for seed in [1, 2, 3] {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        let (layout, tag, bundle) = (path("layout"), path("layout") + ":tag", path("bundle"));
        if !must("umoci", &["init", "--layout", &layout]) || !rustix::process::geteuid().is_root() {
            return;
        }
        must("umoci", &["new", "--image", &tag]);
        must("umoci", &["unpack", "--image", &tag, &bundle]);
        let root = dir.path().join("bundle/rootfs");
        let mut random = Random(Bytes(seed));
        for layer in 0..4 {
            for n in 0..15 {
                change(&mut random, &root, layer * 100 + n);
            }
            must("umoci", &["repack", "--refresh-bundle", "--image", &tag, &bundle]);
        }
        let layers = Layers::new();
        layers.build(&[Source::Oci(layout.into())]).unwrap();
        let Some(seen) = layers.shape() else { return };
        assert_eq!(seen, shape(&root), "seed {seed}");
    }
}

#[test]
fn directories_of_overlayfs_are_layers() {
    if !extant_testbed::can_mount() {
        return;
    }
    for seed in [4, 5, 6] {
        // The kernel's overlayfs cannot be stacked on another one.
        let disk = Layers::new();
        let space = disk.path("space");
        fs::create_dir(&space).unwrap();
        let space = extant_testbed::Mount::tmpfs(&space, "size=16m");
        let path = |name: &str| space.path().join(name);
        for name in ["lower", "upper", "work", "merged"] {
            fs::create_dir(path(name)).unwrap();
        }
        let mut random = Random(Bytes(seed));
        for n in 0..15 {
            change(&mut random, &path("lower"), n);
        }
        let options = format!(
            "lowerdir={},upperdir={},workdir={},redirect_dir=off,metacopy=off",
            path("lower").display(),
            path("upper").display(),
            path("work").display()
        );
        let merged = path("merged");
        let overlay = match extant_testbed::Mount::overlay(&merged, &options) {
            Ok(overlay) => overlay,
            Err(words) => {
                println!("skipped: this kernel has no overlayfs: {words}");
                return;
            }
        };
        for n in 100..125 {
            change(&mut random, &merged, n);
        }
        let expected = shape(&merged);
        drop(overlay);
        let sources = [Source::Directory(path("lower")), Source::Directory(path("upper"))];
        disk.build(&sources).unwrap();
        assert_eq!(disk.shape().expect("mounting is possible"), expected, "seed {seed}");
        // No trace of overlayfs is left.
        let mount = Mount::new(&disk.image(), "ro").unwrap();
        for name in expected.keys() {
            let left = xattrs(&mount.path().join(name));
            assert!(left.is_empty(), "{name}: {left:?}");
        }
        drop(mount);
        // The same from a tar with these attributes.
        let archive = disk.path("upper.tar");
        let upper = path("upper");
        let args = ["--xattrs", "--xattrs-include=*", "--format=pax", "-C", upper.to_str().unwrap(), "-cf"];
        if must("tar", &[&args[..], &[archive.to_str().unwrap(), "."]].concat()) {
            disk.build(&[Source::Directory(path("lower")), Source::Tar(archive)]).unwrap();
            assert_eq!(disk.shape().unwrap(), expected, "seed {seed}");
        }
    }
}

#[test]
fn unpacked_layers_hide_what_packed_ones_do() {
    let layers = Layers::new();
    let write = |path: &str| {
        let path = layers.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, path.file_name().unwrap().to_str().unwrap()).unwrap();
    };
    for path in
        ["1/d/gone", "1/d/kept", "1/e/gone", "1/f", "2/d/.wh.gone", "2/e/.wh..wh..opq", "2/.wh.f", "2/g"]
    {
        write(path);
    }
    write("2/.wh..wh.plnk/1.2");
    fs::hard_link(layers.path("2/.wh..wh.plnk/1.2"), layers.path("2/h")).unwrap();
    let sources = ["1", "2"].map(|name| Source::Directory(layers.path(name)));
    assert_eq!(layers.build(&sources).unwrap().notes, []);
    if let Some(seen) = layers.shape() {
        let expected = [
            ("d", IMPLIED),
            ("d/kept", "kept (1 links)"),
            ("e", IMPLIED),
            ("g", "g (1 links)"),
            ("h", "1.2 (1 links)"),
        ];
        assert_eq!(seen, shaped(&expected));
    }
    // Unless layers are requested, marks are treated as files, with a note.
    let notes = try_build(&options(layers.image()), &sources).unwrap().notes;
    assert_eq!(notes.len(), 1, "{notes:?}");
    let told = notes[0].to_string();
    assert!(told.contains("whiteout \"/.wh..wh.plnk\" and 3 more taken as a file"), "{told}");
    let sources = layers.sources(&[archive(&["a!", "b!", ".wh.c="])]);
    let notes = try_build(&options(layers.image()), &sources).unwrap().notes;
    assert!(notes[0].to_string().contains("whiteout \"a\" and 2 more taken as a file"), "{notes:?}");
}

#[test]
fn a_layer_renames_a_file_of_a_directory() {
    let layers = Layers::new();
    let base = layers.path("base");
    fs::create_dir_all(base.join("d")).unwrap();
    fs::write(base.join("d/old"), "contents").unwrap();
    fs::write(base.join("kept"), "kept").unwrap();
    let upper = archive(&["0==d/old", "new==d/old", ".wh.d=", "2==kept"]);
    let mut sources = vec![Source::Directory(base)];
    sources.extend(layers.sources(&[upper]));
    layers.build(&sources).unwrap();
    if let Some(seen) = layers.shape() {
        let (renamed, kept) = ("contents (2 links)", "kept (2 links)");
        assert_eq!(seen, shaped(&[("0", renamed), ("new", renamed), ("2", kept), ("kept", kept)]));
    }
}

#[test]
fn layers_that_need_another_are_refused_by_name() {
    let layers = Layers::new();
    for name in ["trusted.overlay.redirect", "user.overlay.metacopy"] {
        let upper = [pax(&format!("SCHILY.xattr.{name}"), b"/elsewhere"), archive(&["moved/"])].concat();
        let error = layers.build(&layers.sources(&[upper])).unwrap_err().to_string();
        assert!(error.starts_with("\"/moved\" of \"") && error.contains(name), "{error}");
        assert!(error.contains("contents lie in another layer"), "{error}");
    }
    let error =
        layers.build(&layers.sources(&[archive(&["d/"]), archive(&["l==d"])])).unwrap_err().to_string();
    assert!(error.contains("hard link to the directory \"d\""), "{error}");
}
