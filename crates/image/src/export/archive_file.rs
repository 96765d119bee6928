//! An archive file, compressed according to its name. The name appears only once the archive is
//! complete.

use crate::BuildError;
use crate::write::{Naming, NewFile, behind_links};
use flate2::write::GzEncoder;
use liblzma::write::XzEncoder;
use std::ffi::OsStr;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::Path;

/// Compression of an archive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// None.
    #[default]
    None,
    /// gzip.
    Gzip,
    /// Zstandard.
    Zstd,
    /// xz.
    Xz,
}

impl Compression {
    /// Chooses the compression by the file name's extension; `None` for a format that cannot be
    /// written here.
    pub fn of(path: &Path) -> Option<Self> {
        Some(match path.extension().and_then(OsStr::to_str) {
            Some("gz" | "tgz") => Self::Gzip,
            Some("zst" | "tzst") => Self::Zstd,
            Some("xz" | "txz") => Self::Xz,
            Some("bz2" | "tbz" | "tbz2" | "lz" | "lz4" | "lzma" | "Z") => return None,
            _ => Self::None,
        })
    }
}

/// An archive being written. Until [`Archive::finish`], its name is absent or still refers to the
/// previous file.
pub struct Archive {
    encoder: Encoder,
    /// The file that gets its name at the end; `None` if it is written in place, such as a pipe.
    pending: Option<NewFile>,
}

enum Encoder {
    None(BufWriter<File>),
    Gzip(GzEncoder<BufWriter<File>>),
    Zstd(zstd::Encoder<'static, BufWriter<File>>),
    Xz(XzEncoder<BufWriter<File>>),
}

impl Archive {
    /// Starts an archive that will appear at `path`, or where a symbolic link there leads, with the
    /// permissions of a file that it replaces. An existing pipe or device is written in place.
    ///
    /// # Errors
    /// The file or its folder cannot be written, or links lead in a circle.
    pub fn create(path: &Path, compression: Compression) -> io::Result<Self> {
        let in_place = path.metadata().is_ok_and(|there| !there.is_file());
        let (file, pending): (File, _) = if in_place {
            (OpenOptions::new().write(true).open(path)?, None)
        } else {
            let file = NewFile::create(&behind_links(path)?).map_err(cause)?;
            (file.duplicate().map_err(cause)?.into(), Some(file))
        };
        let file = BufWriter::with_capacity(256 << 10, file);
        let encoder = match compression {
            Compression::None => Encoder::None(file),
            Compression::Gzip => Encoder::Gzip(GzEncoder::new(file, flate2::Compression::default())),
            Compression::Zstd => Encoder::Zstd(zstd::Encoder::new(file, zstd::DEFAULT_COMPRESSION_LEVEL)?),
            Compression::Xz => Encoder::Xz(XzEncoder::new(file, 6)),
        };
        Ok(Self { encoder, pending })
    }

    /// Completes the archive and gives it its name.
    ///
    /// # Errors
    /// The rest cannot be written, or the archive cannot be given its name; an existing file of
    /// that name stays as it was.
    pub fn finish(self) -> io::Result<()> {
        let file = match self.encoder {
            Encoder::None(file) => file,
            Encoder::Gzip(encoder) => encoder.finish()?,
            Encoder::Zstd(encoder) => encoder.finish()?,
            Encoder::Xz(encoder) => encoder.finish()?,
        };
        file.into_inner().map_err(io::IntoInnerError::into_error)?;
        match self.pending {
            Some(mut file) => file.name(Naming::Replacing).map_err(cause),
            None => Ok(()),
        }
    }

    fn encoder(&mut self) -> &mut dyn Write {
        match &mut self.encoder {
            Encoder::None(file) => file,
            Encoder::Gzip(encoder) => encoder,
            Encoder::Zstd(encoder) => encoder,
            Encoder::Xz(encoder) => encoder,
        }
    }
}

/// The system's error; the caller names the file.
fn cause(error: BuildError) -> io::Error {
    match error {
        BuildError::Output { error, .. } => error,
        other => io::Error::other(other),
    }
}

impl Write for Archive {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.encoder().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.encoder().flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_has_no_name_before_it_is_complete() {
        use rustix::fs::{Mode, OFlags};
        let dir = tempfile::tempdir().unwrap();
        if rustix::fs::open(dir.path(), OFlags::RDWR | OFlags::TMPFILE, Mode::RUSR).is_err() {
            println!("skipped: the file system of the tests has no files without names");
            return;
        }
        let names = || std::fs::read_dir(dir.path()).unwrap().count();
        let path = dir.path().join("archive");
        let mut archive = Archive::create(&path, Compression::None).unwrap();
        archive.write_all(b"contents").unwrap();
        archive.flush().unwrap();
        assert_eq!(names(), 0, "nothing is left if the program is killed");
        archive.finish().unwrap();
        assert_eq!((names(), std::fs::read(&path).unwrap()), (1, b"contents".to_vec()));
    }
}
