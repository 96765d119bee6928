//! The volumes that are checked.

use super::{Result, text};
use crate::bench::bed::tool;
use extant_image::{BuildOptions, Source, build};
use extant_rt::Rt;
use extant_testbed::Mount;
use rustix::fs::{FallocateFlags, fallocate};
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

/// Number of files in `a` and `a2`, of names in `b`, and of extents in `c`.
const MANY: u32 = 1_000_000;
const FILES_PER_DIR: u32 = 10;
const DIRS_PER_PART: u32 = 1000;
const EXTENTS_PER_FILE: u32 = 250;
const FILES_PER_DIR_OF_C: u32 = 8;
const BYTES_OF_C: u64 = 1 << 40;
/// Options of mke2fs that leave inode tables and journal unzeroed. The options in `MOUNTED` keep
/// the kernel from zeroing them later.
const LAZY: &str = "lazy_itable_init=1,lazy_journal_init=1";
const MOUNTED: &str = "rw,noinit_itable";

/// The folder of the images, and their sizes.
pub(super) struct Folder {
    pub(super) dir: PathBuf,
    /// Divisor for all sizes.
    pub(super) scale: u32,
    /// The tree that image `d` is made from.
    pub(super) tree: PathBuf,
}

impl Folder {
    /// Returns an image, after making it if it does not exist.
    pub(super) fn image(&self, name: &str) -> Result<PathBuf> {
        let scale = match self.scale {
            1 => String::new(),
            scale => format!("-{scale}"),
        };
        let image = self.dir.join(format!("{name}{scale}.img"));
        if image.exists() {
            return Ok(image);
        }
        eprintln!("making {}", image.display());
        // The image gets its final name once it is complete.
        let part = image.with_extension("part");
        let many = MANY / self.scale;
        match name {
            "a" => self.with_tar(&part, |part, tar| built(part, Source::Tar(tar.into())))?,
            "a2" => self.with_tar(&part, |part, tar| self.by_kernel(part, tar))?,
            "b" => {
                let tar = self.dir.join("names.tar");
                let mut archive = Archive::create(&tar)?;
                (0..many).try_for_each(|n| archive.file(&format!("name-number-{n}"), b""))?;
                archive.finish()?;
                built(&part, Source::Tar(tar.clone()))?;
                fs::remove_file(tar)?;
            }
            "c" => self.sparse(&part, many)?,
            _ => built(&part, Source::Directory(self.tree.clone()))?,
        }
        fs::rename(&part, &image)?;
        Ok(image)
    }

    /// Makes an image from an archive of many small files.
    fn with_tar(&self, part: &Path, make: impl FnOnce(&Path, &Path) -> Result<()>) -> Result<()> {
        let tar = self.dir.join("tree.tar");
        let mut archive = Archive::create(&tar)?;
        let dirs = (MANY / self.scale / FILES_PER_DIR).max(1);
        for dir in 0..dirs {
            let outer = format!("part{:02}", dir / DIRS_PER_PART);
            if dir % DIRS_PER_PART == 0 {
                archive.folder(&outer)?;
            }
            let inner = format!("{outer}/dir{:03}", dir % DIRS_PER_PART);
            archive.folder(&inner)?;
            for file in 0..FILES_PER_DIR {
                let contents = format!("{:064}", dir * FILES_PER_DIR + file);
                archive.file(&format!("{inner}/file-{file}.txt"), contents.as_bytes())?;
            }
        }
        archive.finish()?;
        make(part, &tar)?;
        fs::remove_file(tar)?;
        Ok(())
    }

    /// Lets the kernel create the files of an archive.
    fn by_kernel(&self, part: &Path, tar: &Path) -> Result<()> {
        let many = u64::from(MANY / self.scale);
        let inodes = (many + many / 5 + 100).to_string();
        File::create(part)?.set_len(many * 8192 + (64 << 20))?;
        tool("mke2fs", &["-q", "-F", "-t", "ext4", "-N", &inodes, "-E", LAZY, text(part)?])?;
        let at = self.dir.join("mnt");
        let mount = Mount::try_new(part, &at, MOUNTED)?;
        let mut extract = Command::new("tar");
        extract.arg("-xf").arg(tar).arg("-C").arg(&at).stdin(Stdio::null());
        if !extract.status()?.success() {
            return Err("tar could not extract the files".into());
        }
        drop(mount);
        Ok(fs::remove_dir(at)?)
    }

    /// A large volume with many extents and no contents.
    fn sparse(&self, part: &Path, extents: u32) -> Result<()> {
        File::create(part)?.set_len((BYTES_OF_C / u64::from(self.scale)) >> 12 << 12)?;
        tool("mke2fs", &["-q", "-F", "-t", "ext4", "-E", LAZY, text(part)?])?;
        let at = self.dir.join("mnt");
        let mount = Mount::try_new(part, &at, MOUNTED)?;
        for file in 0..(extents / EXTENTS_PER_FILE).max(1) {
            let dir = at.join(format!("dir{:03}", file / FILES_PER_DIR_OF_C));
            fs::create_dir_all(&dir)?;
            let file = File::create(dir.join(format!("file{}", file % FILES_PER_DIR_OF_C)))?;
            // Every other block.
            for n in 0..u64::from(EXTENTS_PER_FILE) {
                fallocate(&file, FallocateFlags::empty(), n * 8192, 4096)?;
            }
        }
        drop(mount);
        Ok(fs::remove_dir(at)?)
    }
}

fn built(part: &Path, source: Source) -> Result<()> {
    let options = BuildOptions { one_file_system: true, ..BuildOptions::new(part) };
    build(&options, &[source], &Rt::real(Default::default()), Arc::new(|_, _| {}))?;
    Ok(())
}

/// A tar file that is being written.
struct Archive(BufWriter<File>);

impl Archive {
    fn create(path: &Path) -> Result<Self> {
        Ok(Self(BufWriter::with_capacity(1 << 20, File::create(path)?)))
    }

    fn folder(&mut self, name: &str) -> Result<()> {
        self.member(name, b'5', 0o755, b"")
    }

    fn file(&mut self, name: &str, contents: &[u8]) -> Result<()> {
        self.member(name, b'0', 0o644, contents)
    }

    /// A member in the format of POSIX.1-1988 (ustar).
    fn member(&mut self, name: &str, kind: u8, mode: u32, contents: &[u8]) -> Result<()> {
        let mut head = [0; 512];
        let mut put = |at: usize, bytes: &[u8]| head[at..at + bytes.len()].copy_from_slice(bytes);
        put(0, name.as_bytes());
        put(100, format!("{mode:07o}").as_bytes());
        put(108, b"0000000");
        put(116, b"0000000");
        put(124, format!("{:011o}", contents.len()).as_bytes());
        put(136, format!("{:011o}", 1_700_000_000).as_bytes());
        put(148, b"        ");
        put(156, &[kind]);
        put(257, b"ustar\x0000");
        let sum: u32 = head.iter().map(|&byte| u32::from(byte)).sum();
        head[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        self.0.write_all(&head)?;
        self.0.write_all(contents)?;
        let padding = contents.len().next_multiple_of(512) - contents.len();
        Ok(self.0.write_all(&[0; 512][..padding])?)
    }

    fn finish(mut self) -> Result<()> {
        self.0.write_all(&[0; 1024])?;
        Ok(self.0.flush()?)
    }
}
