//! mke2fs images, kernel mounts, and the kernel's view of files.

use extant::{ExtentFlags, File, FileExtent, OpenOptions, Volume};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub(crate) fn run(command: &str, args: &[&str]) -> String {
    let out = Command::new(command).args(args).stdin(Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&out.stdout).into_owned() + &String::from_utf8_lossy(&out.stderr)
}

/// Whether the kernel can mount here and e2fsprogs is installed; prints a message if not.
pub(crate) fn have_kernel() -> bool {
    have_tools() && extant_testbed::can_mount()
}

pub(crate) fn have_tools() -> bool {
    let found =
        ["mke2fs", "e2fsck", "filefrag"].iter().all(|tool| Command::new(tool).arg("-V").output().is_ok());
    if !found {
        println!("skipped: e2fsprogs is not installed (apt-get install e2fsprogs)");
    }
    found
}

/// A new volume.
pub(crate) fn make(dir: &Path, args: &str) -> PathBuf {
    let image = dir.join("image");
    std::fs::write(&image, b"").unwrap();
    let mut all = vec!["-F", "-q"];
    let (options, size) = args.rsplit_once(' ').unwrap();
    all.extend(options.split(' '));
    all.extend([image.to_str().unwrap(), size]);
    let said = run("mke2fs", &all);
    let harmless = ["128-byte inodes", "Warning: blocksize "].iter().any(|line| said.starts_with(line));
    // mke2fs warns that the feature is under development.
    let harmless = harmless || args.contains("bigalloc") && !said.contains("rror");
    assert!(said.is_empty() || harmless, "{args}: {said}");
    image
}

pub(crate) fn open(image: &Path) -> Volume {
    Volume::open(image, &OpenOptions::new().write(true)).unwrap()
}

pub(crate) fn check(image: &Path, what: &str) {
    let said = run("e2fsck", &["-fn", image.to_str().unwrap()]);
    let advice = |line: &str| line.contains("could be narrower") || line.contains("could be shorter");
    let lines = said.lines().filter(|line| !line.is_empty() && !line.starts_with("e2fsck ") && !advice(line));
    let (passes, others): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with("Pass "));
    assert!(passes.len() == 5 && others.len() == 1, "{what}: {said}");
}

/// The volume mounted by the kernel until this is dropped.
pub(crate) struct Mount(extant_testbed::Mount);

impl Mount {
    pub(crate) fn of(image: &Path) -> Self {
        Self(extant_testbed::Mount::new(image, &image.with_extension("mounted"), "rw"))
    }

    pub(crate) fn file(&self, name: &str) -> std::fs::File {
        std::fs::File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(self.at(name))
            .unwrap()
    }

    pub(crate) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

/// An extent reduced to what does not depend on how a tool splits them: first byte, length,
/// location, flags except `LAST` and `MERGED`.
pub(crate) type Place = (u64, u64, u64, String);

/// Merges contiguous extents.
fn joined(extents: impl IntoIterator<Item = Place>) -> Vec<Place> {
    let mut all: Vec<Place> = Vec::new();
    for (offset, bytes, at, flags) in extents {
        match all.last_mut() {
            Some(last) if last.0 + last.1 == offset && last.2 + last.1 == at && last.3 == flags => {
                last.1 += bytes
            }
            _ => all.push((offset, bytes, at, flags)),
        }
    }
    all
}

pub(crate) fn ours(extents: &[FileExtent]) -> Vec<Place> {
    let names = [
        (ExtentFlags::DELALLOC, "delalloc"),
        (ExtentFlags::DATA_INLINE, "inline"),
        (ExtentFlags::UNWRITTEN, "unwritten"),
    ];
    for (n, extent) in extents.iter().enumerate() {
        assert_eq!(extent.flags.contains(ExtentFlags::LAST), n + 1 == extents.len(), "{extents:?}");
    }
    joined(extents.iter().map(|extent| {
        let flags: Vec<_> =
            names.iter().filter(|(flag, _)| extent.flags.contains(*flag)).map(|(_, name)| *name).collect();
        (extent.offset, extent.bytes, extent.device_offset, flags.join(","))
    }))
}

/// The kernel's extents of a file (FIEMAP), from filefrag's output, in units of `unit` bytes.
pub(crate) fn kernels(path: &Path, unit: u64) -> Vec<Place> {
    let said = run("filefrag", &["-v", &format!("-b{unit}"), path.to_str().unwrap()]);
    let extents = said.lines().filter_map(|line| {
        let fields: Vec<_> = line.split(':').map(str::trim).collect();
        fields[0].parse::<u32>().ok()?;
        let first = |field: &str| field.split("..").next().unwrap().trim().parse::<u64>().unwrap() * unit;
        let kept = ["delalloc", "inline", "unwritten"];
        let flags: Vec<_> = fields.last()?.split(',').filter(|flag| kept.contains(flag)).collect();
        Some((first(fields[1]), first(fields[3]), first(fields[2]), flags.join(",")))
    });
    joined(extents)
}

/// Results of `SEEK_DATA` and `SEEK_HOLE` from each of these places in a file.
pub(crate) fn kernel_seeks(file: &std::fs::File, places: &[u64]) -> Vec<(Option<u64>, Option<u64>)> {
    use rustix::fs::{SeekFrom, seek};
    let told = |to| match seek(file, to) {
        Ok(at) => Some(at),
        Err(error) => {
            assert_eq!(error, rustix::io::Errno::NXIO);
            None
        }
    };
    places.iter().map(|&at| (told(SeekFrom::Data(at)), told(SeekFrom::Hole(at)))).collect()
}

pub(crate) fn our_seeks(file: &File, places: &[u64]) -> Vec<(Option<u64>, Option<u64>)> {
    places.iter().map(|&at| (file.seek_data(at).unwrap(), file.seek_hole(at).unwrap())).collect()
}
