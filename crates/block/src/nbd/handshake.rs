//! Negotiates an export with the server.

use super::NbdError;
use super::wire::{self, ExportFlags};
use std::io::{Read, Write};

/// Option replies longer than this are refused: they are of no use, and would take memory.
const MAX_OPTION_REPLY: u32 = 64 << 10;

/// The parameters agreed between server and client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Export {
    pub(super) bytes: u64,
    pub(super) flags: ExportFlags,
    pub(super) structured: bool,
    /// Smallest, preferred and largest request, if the server sent them.
    pub(super) block_sizes: Option<[u32; 3]>,
}

/// Runs the fixed newstyle negotiation, up to the transmission phase.
pub(super) fn negotiate(stream: &mut (impl Read + Write), name: &str) -> Result<Export, NbdError> {
    let mut hello = [0; 18];
    stream.read_exact(&mut hello)?;
    let magic = wire::u64_at(&hello, 0).expect("18 bytes");
    if magic != wire::INIT_MAGIC {
        return Err(NbdError::Magic { what: "greeting", found: magic });
    }
    match wire::u64_at(&hello, 8).expect("18 bytes") {
        wire::OPTION_MAGIC => {}
        wire::OLDSTYLE_MAGIC => return Err(NbdError::Oldstyle),
        found => return Err(NbdError::Magic { what: "greeting's second half", found }),
    }
    let flags = wire::u16_at(&hello, 16).expect("18 bytes");
    if flags & wire::FIXED_NEWSTYLE == 0 {
        return Err(NbdError::Oldstyle);
    }
    let ours = flags & (wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
    stream.write_all(&u32::from(ours).to_be_bytes())?;

    send_option(stream, wire::OPT_STRUCTURED_REPLY, &[])?;
    let structured = match read_reply(stream, wire::OPT_STRUCTURED_REPLY)? {
        (wire::REP_ACK, _) => true,
        (kind, _) if kind & wire::REP_IS_ERROR != 0 => false,
        (kind, _) => return Err(NbdError::OptionReply { option: wire::OPT_STRUCTURED_REPLY, kind }),
    };
    match go(stream, name)? {
        Some((bytes, flags, block_sizes)) => Ok(Export { bytes, flags, structured, block_sizes }),
        None => export_name(stream, name, ours & wire::NO_ZEROES != 0).map(|(bytes, flags)| Export {
            bytes,
            flags,
            structured,
            block_sizes: None,
        }),
    }
}

type Info = (u64, ExportFlags, Option<[u32; 3]>);

/// `NBD_OPT_GO`; `None` if the server does not know it.
fn go(stream: &mut (impl Read + Write), name: &str) -> Result<Option<Info>, NbdError> {
    let mut data = Vec::with_capacity(name.len() + 8);
    data.extend_from_slice(&(name.len() as u32).to_be_bytes());
    data.extend_from_slice(name.as_bytes());
    data.extend_from_slice(&1_u16.to_be_bytes());
    data.extend_from_slice(&wire::INFO_BLOCK_SIZE.to_be_bytes());
    send_option(stream, wire::OPT_GO, &data)?;
    let mut export = None;
    let mut block_sizes = None;
    loop {
        let (kind, data) = read_reply(stream, wire::OPT_GO)?;
        match kind {
            wire::REP_ACK => {
                let (bytes, flags) = export.ok_or(NbdError::NoExportInfo)?;
                return Ok(Some((bytes, flags, block_sizes)));
            }
            wire::REP_INFO => match wire::u16_at(&data, 0) {
                Some(wire::INFO_EXPORT) if data.len() == 12 => {
                    let bytes = wire::u64_at(&data, 2).expect("12 bytes");
                    let flags = wire::u16_at(&data, 10).expect("12 bytes");
                    export = Some((bytes, ExportFlags::from_bits_retain(flags)));
                }
                Some(wire::INFO_BLOCK_SIZE) if data.len() == 14 => {
                    let sizes = [2, 6, 10].map(|at| wire::u32_at(&data, at).expect("14 bytes"));
                    block_sizes = Some(check_block_sizes(sizes)?);
                }
                Some(wire::INFO_EXPORT | wire::INFO_BLOCK_SIZE) | None => {
                    return Err(NbdError::InfoLength(data.len()));
                }
                // A server may send more than was asked for.
                Some(_) => {}
            },
            wire::REP_ERR_UNSUP => return Ok(None),
            kind if kind & wire::REP_IS_ERROR != 0 => {
                // A polite goodbye; the server may already have hung up.
                let _ = send_option(stream, wire::OPT_ABORT, &[]);
                let message = String::from_utf8_lossy(&data).into_owned();
                return Err(NbdError::Refused { export: name.into(), reason: reason(kind), message });
            }
            kind => return Err(NbdError::OptionReply { option: wire::OPT_GO, kind }),
        }
    }
}

/// Checks for powers of two in order, as the protocol requires ("Block size constraints").
fn check_block_sizes(sizes: [u32; 3]) -> Result<[u32; 3], NbdError> {
    let [least, preferred, most] = sizes;
    let sound = least.is_power_of_two()
        && least <= 64 << 10
        && preferred.is_power_of_two()
        && preferred >= least
        && most >= preferred
        && (most.is_multiple_of(least) || most == u32::MAX);
    if sound { Ok(sizes) } else { Err(NbdError::BlockSizes(sizes)) }
}

/// `NBD_OPT_EXPORT_NAME`, the only way for older servers; it gives no reason when it fails.
fn export_name(
    stream: &mut (impl Read + Write),
    name: &str,
    no_zeroes: bool,
) -> Result<(u64, ExportFlags), NbdError> {
    send_option(stream, wire::OPT_EXPORT_NAME, name.as_bytes())?;
    let mut answer = [0; 10 + 124];
    let answer = &mut answer[..if no_zeroes { 10 } else { 134 }];
    stream.read_exact(answer)?;
    let bytes = wire::u64_at(answer, 0).expect("10 bytes");
    Ok((bytes, ExportFlags::from_bits_retain(wire::u16_at(answer, 8).expect("10 bytes"))))
}

fn send_option(stream: &mut impl Write, option: u32, data: &[u8]) -> Result<(), NbdError> {
    let mut message = Vec::with_capacity(16 + data.len());
    message.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
    message.extend_from_slice(&option.to_be_bytes());
    message.extend_from_slice(&(data.len() as u32).to_be_bytes());
    message.extend_from_slice(data);
    Ok(stream.write_all(&message)?)
}

fn read_reply(stream: &mut impl Read, option: u32) -> Result<(u32, Vec<u8>), NbdError> {
    let mut header = [0; 20];
    stream.read_exact(&mut header)?;
    let magic = wire::u64_at(&header, 0).expect("20 bytes");
    if magic != wire::OPTION_REPLY_MAGIC {
        return Err(NbdError::Magic { what: "option reply", found: magic });
    }
    let number = |at| wire::u32_at(&header, at).expect("20 bytes");
    let (answered, kind, length) = (number(8), number(12), number(16));
    if answered != option {
        return Err(NbdError::OtherOption { asked: option, answered });
    }
    if length > MAX_OPTION_REPLY {
        return Err(NbdError::OptionLength(length));
    }
    let mut data = vec![0; length as usize];
    stream.read_exact(&mut data)?;
    Ok((kind, data))
}

/// The meaning of an error reply to an option.
fn reason(kind: u32) -> &'static str {
    match kind & !wire::REP_IS_ERROR {
        2 => "the server's policy forbids it",
        3 => "the server finds the request invalid",
        4 => "the server's platform does not support it",
        5 => "the server demands TLS, which is not supported here",
        6 => "there is no export of that name",
        7 => "the server is shutting down",
        8 => "the server demands a client that heeds its block sizes",
        9 => "the request is too large for the server",
        _ => "the server gives no reason that is known here",
    }
}
