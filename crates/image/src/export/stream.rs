//! Writes one file's contents to a stream, such as a pipe or a device.

use super::file_contents::{self, Sink};
use super::{ExportError, Exported, Watch};
use extant_format::{FileKind, Inode, UintExt};
use extant_fs::{Error, Volume};
use std::io::{self, Write};

/// Writes the contents of a regular file to `out`, in order, with holes as zeros. Only the contents
/// are written.
///
/// # Errors
/// [`Error::NotAFile`] for any other kind of file, and any error that ends the copy. An unreadable
/// piece is reported to `watch` and written as zeros.
pub async fn to_writer(
    volume: &Volume,
    top: &Inode,
    out: &mut dyn Write,
    watch: &mut dyn Watch,
) -> Result<Exported, ExportError> {
    if top.kind() != Some(FileKind::Regular) {
        return Err(Error::NotAFile(format!("inode {}", top.number)).into());
    }
    let stream = volume.stream(top.clone()).await?;
    let mut filled = Filled { out, at: 0 };
    let bytes = file_contents::send(stream, b"", &mut filled, watch).await?;
    filled.zeros_to(top.size())?;
    out.flush()?;
    Ok(Exported { directories: 0, others: 1, bytes })
}

/// A sink that cannot seek.
struct Filled<'a> {
    out: &'a mut dyn Write,
    at: u64,
}

impl Filled<'_> {
    fn zeros_to(&mut self, offset: u64) -> io::Result<()> {
        let hole = offset.saturating_sub(self.at);
        io::copy(&mut io::Read::take(io::repeat(0), hole), self.out)?;
        self.at += hole;
        Ok(())
    }
}

impl Sink for Filled<'_> {
    fn data(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.zeros_to(offset)?;
        self.out.write_all(bytes)?;
        self.at += bytes.len().to_u64();
        Ok(())
    }
}
