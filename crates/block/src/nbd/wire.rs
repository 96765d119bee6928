//! The protocol's constants and message layouts, in network byte order.
//!
//! Source: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

use super::NbdError;
use bitflags::bitflags;

/// `NBDMAGIC`, the first word of the handshake.
pub(super) const INIT_MAGIC: u64 = 0x4e42_444d_4147_4943;
/// `IHAVEOPT`, the second word of a newstyle handshake and the first of every option.
pub(super) const OPTION_MAGIC: u64 = 0x4948_4156_454f_5054;
/// The second word of an oldstyle handshake.
pub(super) const OLDSTYLE_MAGIC: u64 = 0x0000_4202_8186_1253;
pub(super) const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

pub(super) const FIXED_NEWSTYLE: u16 = 1 << 0;
pub(super) const NO_ZEROES: u16 = 1 << 1;

pub(super) const OPT_EXPORT_NAME: u32 = 1;
pub(super) const OPT_ABORT: u32 = 2;
pub(super) const OPT_GO: u32 = 7;
pub(super) const OPT_STRUCTURED_REPLY: u32 = 8;

pub(super) const REP_ACK: u32 = 1;
pub(super) const REP_INFO: u32 = 3;
/// Set in option replies that are errors.
pub(super) const REP_IS_ERROR: u32 = 1 << 31;
pub(super) const REP_ERR_UNSUP: u32 = REP_IS_ERROR | 1;

pub(super) const INFO_EXPORT: u16 = 0;
pub(super) const INFO_BLOCK_SIZE: u16 = 3;

bitflags! {
    /// Transmission flags: what an export supports.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(super) struct ExportFlags: u16 {
        const HAS_FLAGS = 1 << 0;
        const READ_ONLY = 1 << 1;
        const SEND_FLUSH = 1 << 2;
        const SEND_FUA = 1 << 3;
        const ROTATIONAL = 1 << 4;
        const SEND_TRIM = 1 << 5;
        const SEND_WRITE_ZEROES = 1 << 6;
        const CAN_MULTI_CONN = 1 << 8;
        const _ = !0;
    }
}

/// Command types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub(super) enum Command {
    Read = 0,
    Write = 1,
    Disconnect = 2,
    Flush = 3,
    Trim = 4,
    WriteZeroes = 6,
}

/// Command flag: durable when answered.
pub(super) const COMMAND_FUA: u16 = 1 << 0;

pub(super) const REQUEST_BYTES: usize = 28;

/// A request's header.
pub(super) fn request(
    flags: u16,
    command: Command,
    cookie: u64,
    offset: u64,
    length: u32,
) -> [u8; REQUEST_BYTES] {
    let mut header = [0; REQUEST_BYTES];
    header[0..4].copy_from_slice(&REQUEST_MAGIC.to_be_bytes());
    header[4..6].copy_from_slice(&flags.to_be_bytes());
    header[6..8].copy_from_slice(&(command as u16).to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..24].copy_from_slice(&offset.to_be_bytes());
    header[24..28].copy_from_slice(&length.to_be_bytes());
    header
}

const SIMPLE_REPLY_BYTES: usize = 16;
const CHUNK_HEADER_BYTES: usize = 20;
const CHUNK_DONE: u16 = 1 << 0;
const CHUNK_NONE: u16 = 0;
const CHUNK_OFFSET_DATA: u16 = 1;
const CHUNK_OFFSET_HOLE: u16 = 2;
const CHUNK_IS_ERROR: u16 = 1 << 15;
const CHUNK_ERROR_OFFSET: u16 = CHUNK_IS_ERROR | 2;
/// The longest message of an error chunk is 65535 bytes; this includes what surrounds it.
pub(super) const MAX_SMALL_CHUNK: usize = CHUNK_HEADER_BYTES + 4 + 2 + 65_535 + 8;

/// A server's message, without the data of a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Reply {
    /// A simple answer; if it is a successful read, its data follows.
    Simple { cookie: u64, error: u32 },
    /// The command succeeded; there is nothing else.
    Nothing { cookie: u64, done: bool },
    /// This many bytes of data for this place follow.
    Data { cookie: u64, done: bool, offset: u64, bytes: u32 },
    /// This many zeros at this place.
    Hole { cookie: u64, done: bool, offset: u64, bytes: u32 },
    /// The command failed.
    Error { cookie: u64, done: bool, error: u32, message: String },
}

/// The first reply in `bytes` and its length; `None` if more bytes are needed.
pub(super) fn parse_reply(bytes: &[u8]) -> Result<Option<(Reply, usize)>, NbdError> {
    let Some(magic) = u32_at(bytes, 0) else { return Ok(None) };
    match magic {
        SIMPLE_REPLY_MAGIC => {
            let (Some(error), Some(cookie)) = (u32_at(bytes, 4), u64_at(bytes, 8)) else { return Ok(None) };
            Ok(Some((Reply::Simple { cookie, error }, SIMPLE_REPLY_BYTES)))
        }
        STRUCTURED_REPLY_MAGIC => parse_chunk(bytes),
        found => Err(NbdError::Magic { what: "reply", found: found.into() }),
    }
}

fn parse_chunk(bytes: &[u8]) -> Result<Option<(Reply, usize)>, NbdError> {
    let (Some(flags), Some(kind)) = (u16_at(bytes, 4), u16_at(bytes, 6)) else { return Ok(None) };
    let (Some(cookie), Some(length)) = (u64_at(bytes, 8), u32_at(bytes, 16)) else { return Ok(None) };
    let done = flags & CHUNK_DONE != 0;
    let body = &bytes[CHUNK_HEADER_BYTES..];
    let wrong = NbdError::ChunkLength { kind, length };
    let whole = CHUNK_HEADER_BYTES + length as usize;
    match kind {
        CHUNK_NONE if length != 0 => Err(wrong),
        CHUNK_NONE if !done => Err(NbdError::NothingNotDone),
        CHUNK_NONE => Ok(Some((Reply::Nothing { cookie, done }, whole))),
        CHUNK_OFFSET_DATA if length <= 8 => Err(wrong),
        CHUNK_OFFSET_DATA => {
            let Some(offset) = u64_at(body, 0) else { return Ok(None) };
            Ok(Some((Reply::Data { cookie, done, offset, bytes: length - 8 }, CHUNK_HEADER_BYTES + 8)))
        }
        CHUNK_OFFSET_HOLE if length != 12 => Err(wrong),
        CHUNK_OFFSET_HOLE => {
            let (Some(offset), Some(bytes)) = (u64_at(body, 0), u32_at(body, 8)) else { return Ok(None) };
            Ok(Some((Reply::Hole { cookie, done, offset, bytes }, whole)))
        }
        kind if kind & CHUNK_IS_ERROR != 0 => {
            // Unknown errors start with the same layout (proto.md, "Structured reply chunk
            // message").
            let tail = if kind == CHUNK_ERROR_OFFSET { 8 } else { 0 };
            if whole > MAX_SMALL_CHUNK || length < 6 + tail {
                return Err(wrong);
            }
            if bytes.len() < whole {
                return Ok(None);
            }
            let (Some(error), Some(message_bytes)) = (u32_at(body, 0), u16_at(body, 4)) else {
                return Err(wrong);
            };
            if u32::from(message_bytes) > length - 6 - tail {
                return Err(wrong);
            }
            let message = String::from_utf8_lossy(&body[6..6 + usize::from(message_bytes)]).into_owned();
            Ok(Some((Reply::Error { cookie, done, error, message }, whole)))
        }
        kind => Err(NbdError::ChunkKind(kind)),
    }
}

pub(super) fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.get(at..at + 8)?.try_into().ok()?))
}

/// The system's error number for one of the protocol's.
pub(super) fn errno(error: u32) -> i32 {
    match error {
        // For these the protocol uses Linux's values; anything else counts as EINVAL (proto.md,
        // "Error values").
        1 | 5 | 12 | 22 | 28 | 75 | 95 | 108 => error as i32,
        _ => 22,
    }
}
