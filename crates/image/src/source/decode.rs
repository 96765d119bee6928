//! Compressed streams, detected by their magic bytes.

use extant_format::UintExt;
use flate2::bufread::GzDecoder;
use std::io::{self, BufRead, BufReader, Cursor, Read};

/// The decompressed bytes of an archive.
pub(crate) type Stream = Box<dyn Read + Send>;

const BUFFER: usize = 256 << 10;
const MAGIC_BYTES: usize = 6;
const GZIP: &[u8] = &[0x1f, 0x8b];

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Compression {
    Plain,
    Gzip,
    Zstd,
    Xz,
}

impl Compression {
    /// Detects the format; an error for formats that are recognized but not supported.
    pub(crate) fn of(start: &[u8]) -> io::Result<Self> {
        const ZSTD: &[u8] = &[0x28, 0xb5, 0x2f, 0xfd];
        const XZ: &[u8] = &[0xfd, b'7', b'z', b'X', b'Z', 0];
        let others: [(&[u8], &str); 4] = [
            (b"BZh", "bzip2"),
            (&[4, 0x22, 0x4d, 0x18], "lz4"),
            (b"LZIP", "lzip"),
            (&[0x1f, 0x9d], "compress"),
        ];
        let zstd_skippable = matches!(start, [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..]);
        if start.starts_with(GZIP) {
            Ok(Self::Gzip)
        } else if start.starts_with(ZSTD) || zstd_skippable {
            Ok(Self::Zstd)
        } else if start.starts_with(XZ) {
            Ok(Self::Xz)
        } else if let Some((_, name)) = others.iter().find(|(magic, _)| start.starts_with(magic)) {
            let message = format!("compressed with {name}; only gzip, zstd and xz are read");
            Err(io::Error::new(io::ErrorKind::Unsupported, message))
        } else {
            Ok(Self::Plain)
        }
    }
}

/// Concatenated gzip members. Trailing bytes that are not a member are ignored, as gzip does: tapes
/// and block devices pad.
struct Gzip<R> {
    /// `None` at the end.
    member: Option<GzDecoder<R>>,
}

impl<R: BufRead> Read for Gzip<R> {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let n = member.read(buf)?;
            if n > 0 || buf.is_empty() {
                return Ok(n);
            }
            let mut rest = self.member.take().expect("it was just read from").into_inner();
            if rest.fill_buf()?.starts_with(&GZIP[..1]) {
                self.member = Some(GzDecoder::new(rest));
            } else {
                io::copy(&mut rest, &mut io::sink())?;
            }
        }
        Ok(0)
    }
}

/// Decompresses `input`, detecting its format; concatenated members form one stream.
pub(crate) fn decoded(mut input: impl Read + Send + 'static) -> io::Result<Stream> {
    let mut start = Vec::with_capacity(MAGIC_BYTES);
    input.by_ref().take(MAGIC_BYTES.to_u64()).read_to_end(&mut start)?;
    let compression = Compression::of(&start)?;
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(start).chain(input));
    Ok(match compression {
        Compression::Plain => Box::new(whole),
        Compression::Gzip => Box::new(Gzip { member: Some(GzDecoder::new(whole)) }),
        Compression::Zstd => Box::new(zstd::stream::read::Decoder::with_buffer(whole)?),
        Compression::Xz => Box::new(liblzma::bufread::XzDecoder::new_multi_decoder(whole)),
    })
}
