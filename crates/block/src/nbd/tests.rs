//! Tests of servers that violate the protocol, and of the negotiation, message by message.

use super::durable::Durability;
use super::handshake::negotiate;
use super::link::{Ended, Link, Terms};
use super::wire::{self, ExportFlags};
use super::*;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};

/// A socket that returns scripted bytes, in pieces, and accepts everything.
#[derive(Default)]
struct Script {
    incoming: VecDeque<u8>,
    outgoing: Vec<u8>,
    /// Bytes returned per read; all if 0.
    piece: usize,
}

impl Read for Script {
    fn read(&mut self, to: &mut [u8]) -> std::io::Result<usize> {
        let n = to.len().min(self.incoming.len()).min(if self.piece == 0 { usize::MAX } else { self.piece });
        if n == 0 {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.incoming.drain(..n).zip(to).for_each(|(byte, to)| *to = byte);
        Ok(n)
    }
}

impl Write for Script {
    fn write(&mut self, from: &[u8]) -> std::io::Result<usize> {
        self.outgoing.extend_from_slice(from);
        Ok(from.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn be(parts: &[(u64, usize)]) -> Vec<u8> {
    parts.iter().flat_map(|&(value, bytes)| value.to_be_bytes()[8 - bytes..].to_vec()).collect()
}

fn simple(cookie: u64, error: u64, data: &[u8]) -> Vec<u8> {
    [be(&[(0x6744_6698, 4), (error, 4), (cookie, 8)]), data.to_vec()].concat()
}

fn chunk(flags: u64, kind: u64, cookie: u64, body: &[u8]) -> Vec<u8> {
    let header = be(&[(0x668e_33ef, 4), (flags, 2), (kind, 2), (cookie, 8), (body.len() as u64, 4)]);
    [header, body.to_vec()].concat()
}

fn data(flags: u64, cookie: u64, offset: u64, bytes: &[u8]) -> Vec<u8> {
    chunk(flags, 1, cookie, &[be(&[(offset, 8)]), bytes.to_vec()].concat())
}

fn hole(flags: u64, cookie: u64, offset: u64, bytes: u64) -> Vec<u8> {
    chunk(flags, 2, cookie, &be(&[(offset, 8), (bytes, 4)]))
}

/// A link with one command in flight; also returns its cookie.
fn one(structured: bool, op: Op) -> (Link, Durability, u64) {
    let terms = Terms { structured, fua: true, flush: true };
    let (mut link, durability) = (Link::new(terms), Durability::default());
    let bio = match op {
        Op::Read | Op::Write => Bio::new(op, Sector(8), vec![Buf::from_slice(&[0xee; 4096]).into()]),
        _ => Bio::range(op, Sector(8), 4096),
    };
    link.start(bio, Nanos::ZERO, &durability);
    let mut script = Script::default();
    assert!(link.send(&mut script).unwrap());
    let cookie = wire::u64_at(&script.outgoing, 8).unwrap();
    (link, durability, cookie)
}

/// The command's result when the server answers with `reply`.
fn answer(structured: bool, op: Op, reply: impl FnOnce(u64) -> Vec<u8>) -> Result<Vec<Ended>, String> {
    let (mut link, durability, cookie) = one(structured, op);
    let mut script = Script { incoming: reply(cookie).into(), ..Script::default() };
    let mut ended = Vec::new();
    link.receive(&mut script, &durability, &mut ended).map_err(|e| {
        assert!(e.is_protocol());
        e.to_string()
    })?;
    Ok(ended)
}

#[test]
fn replies_that_break_the_protocol_are_refused_by_name() {
    const DONE: u64 = 1;
    let full = [7_u8; 4096];
    type Case<'a> = (&'a str, bool, Op, Box<dyn FnOnce(u64) -> Vec<u8> + 'a>);
    let cases: Vec<Case<'_>> = vec![
        ("the reply starts with 0xdeadbeef", true, Op::Read, Box::new(|_| be(&[(0xdead_beef, 4)]))),
        ("reply to nothing that was asked", true, Op::Read, Box::new(|c| chunk(DONE, 0, c + (1 << 32), &[]))),
        ("reply to nothing that was asked", false, Op::Write, Box::new(|c| simple(c + 1, 0, &[]))),
        ("a simple reply to a read", true, Op::Read, Box::new(|c| simple(c, 0, &full))),
        ("a structured reply to a read", false, Op::Read, Box::new(|c| data(DONE, c, 4096, &full))),
        ("a chunk of unknown kind 5", true, Op::Read, Box::new(|c| chunk(DONE, 5, c, &[0; 12]))),
        ("an empty chunk that is not the last", true, Op::Write, Box::new(|c| chunk(0, 0, c, &[]))),
        ("a chunk of kind 0 and 4 bytes", true, Op::Write, Box::new(|c| chunk(DONE, 0, c, &[0; 4]))),
        ("a chunk of kind 1 and 8 bytes", true, Op::Read, Box::new(|c| data(DONE, c, 4096, &[]))),
        ("a chunk of kind 2 and 13 bytes", true, Op::Read, Box::new(|c| chunk(DONE, 2, c, &[0; 13]))),
        ("4096 bytes of data at 4095", true, Op::Read, Box::new(|c| data(DONE, c, 4095, &full))),
        ("1 bytes of data at 8192", true, Op::Read, Box::new(|c| data(DONE, c, 8192, &[1]))),
        ("4294967295 bytes of data at 4096", true, Op::Read, Box::new(|c| hole(DONE, c, 4096, 0xffff_ffff))),
        ("2 bytes of data at 18446744073709551615", true, Op::Read, Box::new(|c| hole(DONE, c, u64::MAX, 2))),
        ("0 bytes of data at 4096", true, Op::Read, Box::new(|c| hole(DONE, c, 4096, 0))),
        (
            "10 bytes of data at 4100, which was not asked for or has been answered",
            true,
            Op::Read,
            Box::new(|c| [data(0, c, 4096, &full[..100]), hole(0, c, 4100, 10)].concat()),
        ),
        (
            "a read of 4096 bytes is answered with 4095",
            true,
            Op::Read,
            Box::new(|c| hole(DONE, c, 4097, 4095)),
        ),
        ("a read of 4096 bytes is answered with 0", true, Op::Read, Box::new(|c| chunk(DONE, 0, c, &[]))),
        (
            "data in the reply to a command that reads nothing",
            true,
            Op::Write,
            Box::new(|c| hole(DONE, c, 4096, 1)),
        ),
        ("a chunk of kind 32769 and 5 bytes", true, Op::Read, Box::new(|c| chunk(DONE, 0x8001, c, &[0; 5]))),
        (
            "a chunk of kind 32769 and 7 bytes",
            true,
            Op::Read,
            Box::new(|c| chunk(DONE, 0x8001, c, &be(&[(5, 4), (200, 2), (0, 1)]))),
        ),
        (
            "a chunk of kind 32769 and 1048576 bytes",
            true,
            Op::Read,
            Box::new(|c| be(&[(0x668e_33ef, 4), (1, 2), (0x8001, 2), (c, 8), (1 << 20, 4), (0, 8)])),
        ),
    ];
    for (expected, structured, op, reply) in cases {
        let message = answer(structured, op, reply).expect_err(expected);
        assert!(
            message.starts_with("protocol: ") && message.contains(expected),
            "{message:?} is not {expected:?}"
        );
    }
}

#[test]
fn an_answer_before_the_request_is_out_is_refused() {
    let (mut link, durability) =
        (Link::new(Terms { structured: true, fua: true, flush: true }), Durability::default());
    link.start(Bio::range(Op::Flush, Sector(0), 0), Nanos::ZERO, &durability);
    let mut script = Script { incoming: chunk(1, 0, 1 << 32, &[]).into(), ..Script::default() };
    assert!(link.receive(&mut script, &durability, &mut Vec::new()).unwrap_err().is_protocol());
}

#[test]
fn errors_of_the_server_keep_their_number_and_the_connection() {
    for (number, errno) in [(5, 5), (28, 28), (108, 108), (4711, 22)] {
        let ended = answer(false, Op::Write, |c| simple(c, number, &[])).unwrap();
        assert_eq!(ended[0].1, Err(IoErrorKind::Os(errno)));
        // An error with a message, of an unknown kind, after some data has arrived.
        let reply = |c| {
            [data(0, c, 4096, &[1]), chunk(1, 0x8777, c, &be(&[(number, 4), (2, 2), (0x6869, 2)]))].concat()
        };
        let ended = answer(true, Op::Read, reply).unwrap();
        assert_eq!(ended[0].1, Err(IoErrorKind::Os(errno)));
    }
}

/// The commands a bio becomes when each one is answered in turn.
fn commands(terms: Terms, mut bio: Bio, flags: crate::BioFlags) -> Vec<(u16, u16)> {
    let (mut link, durability) = (Link::new(terms), Durability::default());
    bio.flags = flags;
    link.start(bio, Nanos::ZERO, &durability);
    let mut commands = Vec::new();
    let mut ended = Vec::new();
    while ended.is_empty() {
        let mut script = Script::default();
        link.send(&mut script).unwrap();
        let word = |at| wire::u16_at(&script.outgoing, at).unwrap();
        commands.push((word(6), word(4)));
        script.incoming = simple(wire::u64_at(&script.outgoing, 8).unwrap(), 0, &[]).into();
        link.receive(&mut script, &durability, &mut ended).unwrap();
    }
    commands
}

#[test]
fn demands_for_durability_become_flags_or_flushes() {
    use crate::BioFlags;
    let write = || Bio::new(Op::Write, Sector(0), vec![Buf::zeroed(512).into()]);
    let all = BioFlags::PREFLUSH | BioFlags::FUA;
    let terms = |fua, flush| Terms { structured: false, fua, flush };
    assert_eq!(commands(terms(true, true), write(), all), [(3, 0), (1, 1)]);
    assert_eq!(commands(terms(false, true), write(), all), [(3, 0), (1, 0), (3, 0)]);
    assert_eq!(commands(terms(false, false), write(), all), [(1, 0)]);
    let empty = Bio::range(Op::Write, Sector(0), 0);
    assert_eq!(commands(terms(true, true), empty, BioFlags::PREFLUSH), [(3, 0)]);
    let zeroes = Bio::range(Op::WriteZeroes, Sector(0), 512);
    assert_eq!(commands(terms(false, true), zeroes, BioFlags::FUA), [(6, 0), (3, 0)]);
}

/// Several concurrent reads, answered in chunks of any size and order, split anywhere.
#[derive(Clone, Debug)]
struct Scenario {
    reads: Vec<u64>,
    cuts: Vec<u64>,
    holes: Vec<bool>,
    order: u64,
    piece: usize,
}

fn scenario() -> impl Strategy<Value = Scenario> {
    let reads = prop::collection::vec(1..12_u64, 1..5);
    let cuts = prop::collection::vec(1..3000_u64, 1..8);
    let holes = prop::collection::vec(any::<bool>(), 1..8);
    (reads, cuts, holes, any::<u64>(), 0..5000_usize)
        .prop_map(|(reads, cuts, holes, order, piece)| Scenario { reads, cuts, holes, order, piece })
}

proptest! {
    #[test]
    fn a_read_is_whole_however_its_answer_comes(s in scenario()) {
        let durability = Durability::default();
        let mut link = Link::new(Terms { structured: true, fua: true, flush: true });
        let mut script = Script { piece: s.piece, ..Script::default() };
        let mut start = 0;
        for &sectors in &s.reads {
            let half = sectors as usize * 256;
            let memory = [half - 1, half + 1].map(|n| Buf::from_slice(&vec![0xee; n]).into());
            link.start(Bio::new(Op::Read, Sector(start), memory.into()), Nanos::ZERO, &durability);
            start += sectors;
        }
        prop_assert!(link.send(&mut script).unwrap());
        let export: Vec<u8> = (0..start * 512).map(|i| (i % 251) as u8 + 1).collect();
        let mut expected = export.clone();
        // Chunks of every read, in shuffled order; each read's last chunk is marked.
        let mut chunks: Vec<Vec<(u64, u64, u64, bool)>> = Vec::new();
        let (mut cuts, mut holes) = (s.cuts.iter().cycle(), s.holes.iter().cycle());
        for request in script.outgoing.chunks(wire::REQUEST_BYTES) {
            let (cookie, from) = (wire::u64_at(request, 8).unwrap(), wire::u64_at(request, 16).unwrap());
            let end = from + u64::from(wire::u32_at(request, 24).unwrap());
            let mut parts = Vec::new();
            let mut at = from;
            while at < end {
                let n = (end - at).min(*cuts.next().unwrap());
                parts.push((cookie, at, n, *holes.next().unwrap()));
                at += n;
            }
            let turn = (s.order % parts.len() as u64) as usize;
            parts.rotate_left(turn);
            chunks.push(parts);
        }
        let mut rng = extant_rt::Rng::new(s.order);
        while !chunks.is_empty() {
            let pick = rng.below(chunks.len() as u64) as usize;
            let (cookie, at, n, is_hole) = chunks[pick].remove(0);
            let done = u64::from(chunks[pick].is_empty());
            if done == 1 {
                chunks.remove(pick);
            }
            let range = at as usize..(at + n) as usize;
            let bytes = if is_hole {
                expected[range].fill(0);
                hole(done, cookie, at, n)
            } else {
                data(done, cookie, at, &export[range])
            };
            script.incoming.extend(bytes);
        }
        let mut ended = Vec::new();
        while !script.incoming.is_empty() {
            link.receive(&mut script, &durability, &mut ended).unwrap();
        }
        prop_assert_eq!(ended.len(), s.reads.len());
        for (bio, result) in ended {
            prop_assert!(result.is_ok());
            let at = bio.start.0 as usize * 512;
            let bytes: Vec<u8> = bio.segments.iter().flat_map(|s| s.as_slice()).copied().collect();
            prop_assert!(bytes == expected[at..at + bytes.len()]);
        }
    }

    #[test]
    fn no_bytes_make_the_client_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), structured: bool, op in 0..3_u8) {
        let op = [Op::Read, Op::Write, Op::Flush][usize::from(op)];
        let _ = answer(structured, op, |cookie| {
            // Random bytes after a valid start, or nothing would get past the magic number.
            let magic = if structured { 0x668e_33ef } else { 0x6744_6698 };
            match bytes.first() {
                Some(b) if b % 2 == 0 => [be(&[(magic, 4)]), bytes].concat(),
                Some(b) if b % 3 == 0 && structured => {
                    let kind = u64::from(b % 4) | u64::from(b & 64) << 9;
                    [be(&[(magic, 4), (1, 2), (kind, 2), (cookie, 8)]), bytes].concat()
                }
                _ => bytes,
            }
        });
    }
}

fn greeting(flags: u64) -> Vec<u8> {
    be(&[(wire::INIT_MAGIC, 8), (wire::OPTION_MAGIC, 8), (flags, 2)])
}

fn option_reply(option: u64, kind: u64, data: &[u8]) -> Vec<u8> {
    [be(&[(wire::OPTION_REPLY_MAGIC, 8), (option, 4), (kind, 4), (data.len() as u64, 4)]), data.to_vec()]
        .concat()
}

fn talk(parts: &[Vec<u8>]) -> Result<Export, String> {
    let mut script = Script { incoming: parts.concat().into(), ..Script::default() };
    negotiate(&mut script, "disk").map_err(|e| e.to_string())
}

const STRUCTURED: u64 = 8;
const GO: u64 = 7;
const ACK: u64 = 1;
const INFO: u64 = 3;
const ERROR: u64 = 1 << 31;

#[test]
fn an_export_is_agreed_on() {
    let size = be(&[(0, 2), (1 << 20, 8), (0b1101, 2)]);
    let blocks = be(&[(3, 2), (512, 4), (4096, 4), (1 << 25, 4)]);
    let export = talk(&[
        greeting(3),
        option_reply(STRUCTURED, ACK, &[]),
        option_reply(GO, INFO, &size),
        option_reply(GO, INFO, &be(&[(1, 2), (0x6869, 2)])),
        option_reply(GO, INFO, &blocks),
        option_reply(GO, ACK, &[]),
    ]);
    let expected = Export {
        bytes: 1 << 20,
        flags: ExportFlags::from_bits_retain(0b1101),
        structured: true,
        block_sizes: Some([512, 4096, 1 << 25]),
    };
    assert_eq!(export, Ok(expected));
}

#[test]
fn a_server_that_knows_neither_go_nor_structured_replies_will_do() {
    for (flags, padding) in [(1, 124), (3, 0)] {
        let export = talk(&[
            greeting(flags),
            option_reply(STRUCTURED, ERROR | 1, &[]),
            option_reply(GO, ERROR | 1, &[]),
            be(&[(4096, 8), (1, 2)]),
            vec![0; padding],
        ])
        .unwrap();
        assert_eq!((export.bytes, export.structured, export.block_sizes), (4096, false, None));
    }
}

#[test]
fn negotiations_that_go_wrong_say_why() {
    let to_go = |reply: Vec<u8>| vec![greeting(3), option_reply(STRUCTURED, ACK, &[]), reply];
    let cases = [
        ("greeting starts with 0x485454502f312e31", vec![b"HTTP/1.1 400 Bad Request".to_vec()]),
        ("oldstyle", vec![be(&[(wire::INIT_MAGIC, 8), (wire::OLDSTYLE_MAGIC, 8), (0, 8)])]),
        ("oldstyle", vec![greeting(0)]),
        ("second half starts with 0x1", vec![be(&[(wire::INIT_MAGIC, 8), (1, 8), (0, 2)])]),
        ("option reply starts with 0x5", vec![greeting(3), be(&[(5, 8), (0, 8), (0, 4)])]),
        ("option 8 was asked, 7 answered", vec![greeting(3), option_reply(GO, ACK, &[])]),
        ("option 8 is answered with 0x3", vec![greeting(3), option_reply(STRUCTURED, INFO, &[])]),
        ("option 7 is answered with 0x2", to_go(option_reply(GO, 2, &[]))),
        ("without its size", to_go(option_reply(GO, ACK, &[]))),
        ("11 bytes of information", to_go(option_reply(GO, INFO, &[0; 11]))),
        ("0 bytes of information", to_go(option_reply(GO, INFO, &[]))),
        (
            "block sizes [3, 4096, 8192]",
            to_go(option_reply(GO, INFO, &be(&[(3, 2), (3, 4), (4096, 4), (8192, 4)]))),
        ),
        (
            "block sizes [512, 256, 8192]",
            to_go(option_reply(GO, INFO, &be(&[(3, 2), (512, 4), (256, 4), (8192, 4)]))),
        ),
        (
            "an option reply of 65537 bytes",
            to_go(be(&[(wire::OPTION_REPLY_MAGIC, 8), (GO, 4), (ACK, 4), (65537, 4)])),
        ),
        (
            "'disk' is refused: there is no export of that name: nope",
            to_go(option_reply(GO, ERROR | 6, b"nope")),
        ),
        ("'disk' is refused: the server demands TLS", to_go(option_reply(GO, ERROR | 5, b""))),
    ];
    for (expected, parts) in cases {
        let message = talk(&parts).expect_err(expected);
        assert!(message.contains(expected), "{message:?} is not {expected:?}");
    }
}
