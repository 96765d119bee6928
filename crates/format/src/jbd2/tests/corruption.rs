//! A single wrong field is reported by name; arbitrary bytes are parsed or refused.

use super::*;

fn field(place: Place, field: &'static str, value: u64, rule: &'static str) -> Corrupt {
    Corrupt::field(place, field, value, rule)
}

#[test]
fn of_the_superblock() {
    const PLACE: Place = Place::JournalSuperblock;
    let [.., journal] = journals();
    let with = |at: usize, bytes: &[u8]| {
        let mut block = journal.block(0).to_vec();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        JournalSuperblock::parse(&block)
    };
    let err = |at, bytes: &[u8]| with(at, bytes).unwrap_err();
    assert_eq!(
        err(3, &[0]),
        Corrupt { place: PLACE, problem: Problem::Magic { found: 0xc03b_3900, expected: JOURNAL_MAGIC } }
    );
    assert_eq!(err(7, &[5]), field(PLACE, "h_blocktype", 5, "3 or 4, a superblock"));
    assert_eq!(err(0xf, &[1]), field(PLACE, "s_blocksize", 1025, "a power of two from 1024 to 65536"));
    assert_eq!(err(0x12, &[3]), field(PLACE, "s_maxlen", 768, "at least 1024"));
    assert_eq!(err(0x17, &[0]), field(PLACE, "s_first", 0, "a block of the log, behind the superblock"));
    assert_eq!(err(0x16, &[4]), field(PLACE, "s_first", 1025, "a block of the log, behind the superblock"));
    assert_eq!(err(0x1e, &[4]), field(PLACE, "s_start", 1025, "a block of the log, or 0"));
    assert_eq!(
        err(0x27, &[1]),
        field(PLACE, "s_feature_compat", 1, "without checksums V1, for there are V2 or V3")
    );
    assert_eq!(
        err(0x2b, &[0x18]),
        field(PLACE, "s_feature_incompat", 0x18, "without one of checksums V2 and V3")
    );
    assert_eq!(
        err(0x2b, &[0x32]),
        field(PLACE, "s_num_fc_blks", 256, "small enough to leave the log 1024 blocks")
    );
    assert_eq!(JournalSuperblock::parse(&[0; 1023]).unwrap_err(), Corrupt::truncated(PLACE, 1024, 1023));

    let checksum = |at, byte| with(at, &[byte]).unwrap().verify_checksum().unwrap_err();
    assert_eq!(checksum(0x50, 1), field(PLACE, "s_checksum_type", 1, "4, CRC-32C"));
    assert!(matches!(checksum(0x1b, 9).problem, Problem::Checksum { stored: 0xc02b_6db9, .. }));
    assert!(matches!(checksum(0x3ff, 9).problem, Problem::Checksum { .. }));

    let v1 = with(4, &[0, 0, 0, 3]).unwrap();
    assert_eq!((v1.incompat(), v1.layout().checksums), (JournalIncompat::empty(), JournalChecksums::None));
}

#[test]
fn of_the_log() {
    for journal in journals() {
        let layout = journal.sb.layout();
        let descriptor = journal.sb.start().unwrap();
        let place = Place::JournalBlock(descriptor);
        let mut block = journal.block(descriptor).to_vec();
        block[4..8].copy_from_slice(&9u32.to_be_bytes());
        let err = JournalTags::parse(&block, &layout, descriptor).unwrap_err();
        assert_eq!(err, field(place, "h_blocktype", 9, "1, a descriptor block"));
        let err = JournalCommit::parse(&block, &layout, descriptor).unwrap_err();
        assert_eq!(err, field(place, "h_blocktype", 9, "2, a commit block"));
        let err = JournalRevokes::parse(&block, &layout, descriptor).unwrap_err();
        assert_eq!(err, field(place, "h_blocktype", 9, "5, a revoke block"));
        block[0] = 0;
        assert!(matches!(
            JournalTags::parse(&block, &layout, descriptor).unwrap_err().problem,
            Problem::Magic { found: 0x003b_3998, expected: JOURNAL_MAGIC }
        ));
        assert_eq!(JournalBlockHeader::read(&block), None);
        assert_eq!(
            JournalTags::parse(&[0; 11], &layout, 1).unwrap_err(),
            Corrupt::truncated(Place::JournalBlock(1), 12, 11)
        );

        let damaged = |number: u32, at: usize| {
            let mut block = journal.block(number).to_vec();
            block[at] ^= 1;
            block
        };
        let every_block = layout.checksums.in_every_block();
        assert_eq!(layout.verify_tail(&damaged(descriptor, 30), descriptor).is_err(), every_block);
        let tag = JournalTags::parse(journal.block(descriptor), &layout, descriptor).unwrap().next().unwrap();
        let verified =
            tag.verify_data(&layout, journal.sb.sequence(), &damaged(descriptor + 1, 500), descriptor + 1);
        assert_eq!(verified.is_err(), every_block);
        if let Err(err) = verified {
            assert_eq!(err.place, Place::JournalBlock(descriptor + 1));
            assert!(matches!(err.problem, Problem::Checksum { stored, .. } if stored == tag.checksum));
        }
    }
}

#[test]
fn of_a_revoke_block() {
    let [_, _, journal, _] = journals();
    let layout = journal.sb.layout();
    let with = |count: u32| {
        let mut block = journal.block(6).to_vec();
        block[12..16].copy_from_slice(&count.to_be_bytes());
        JournalRevokes::parse(&block, &layout, 6).map(Iterator::count)
    };
    assert_eq!((with(16), with(24), with(31), with(1020)), (Ok(0), Ok(1), Ok(1), Ok(125)));
    for count in [15, 1021, u32::MAX] {
        let rule = "from 16 to the block's size without tail";
        assert_eq!(with(count), Err(field(Place::JournalBlock(6), "r_count", count.into(), rule)));
    }
}

#[test]
fn of_a_commit_block() {
    let [_, csum1, _, csum3] = journals();
    let layout = csum1.sb.layout();
    let place = Place::JournalBlock(9);
    let with = |at: usize, bytes: &[u8]| {
        let mut block = csum1.block(9).to_vec();
        block[at..at + bytes.len()].copy_from_slice(bytes);
        JournalCommit::parse(&block, &layout, 9)
    };
    assert_eq!(with(12, &[2]), Err(field(place, "h_chksum_type", 2, "1, CRC-32, with h_chksum_size 4")));
    let unchecked = with(12, &[0; 8]).unwrap();
    assert_eq!((unchecked.transaction_crc, unchecked.verify_transaction(7, 9)), (None, Ok(())));
    let blocks: Vec<_> = (1..9).map(|number| csum1.block(number)).collect();
    let crc = transaction_crc(blocks.iter().copied());
    let commit = with(12, &[]).unwrap();
    commit.verify_transaction(crc, 9).unwrap();
    assert_eq!(commit.verify_transaction(crc ^ 1, 9), Err(Corrupt::checksum(place, crc, crc ^ 1)));

    let mut block = csum3.block(9).to_vec();
    block[0x3b] ^= 1;
    let err = JournalCommit::verify_block(&block, &csum3.sb.layout(), 9).unwrap_err();
    assert!(err.place == place && matches!(err.problem, Problem::Checksum { .. }));
}

#[test]
fn of_a_fast_commit() {
    let bytes = include_bytes!("../../../tests/data/fast_commit_kernel.bin");
    let place = Place::JournalBlock(1025);
    let first_error = |at: usize, edit: &[u8]| {
        let mut block = bytes[..BLOCK].to_vec();
        block[at..at + edit.len()].copy_from_slice(edit);
        FastCommitItems::new(&block, 256, 1025).find_map(Result::err)
    };
    assert_eq!(first_error(0, &[10]), Some(field(place, "fc_tag", 10, "from 1 to 9")));
    assert_eq!(first_error(2, &[7]), Some(field(place, "fc_len", 7, "8, features and a transaction")));
    assert_eq!(
        first_error(3, &[0xff]),
        Some(field(place, "fc_len", 0xff08, "at most what is left of the block"))
    );
    let rule = "4 more than an inode's size, from 128 to the volume's";
    assert_eq!(first_error(14, &[131]), Some(field(place, "fc_len", 131, rule)));
    assert_eq!(first_error(14, &[5, 1]), Some(field(place, "fc_len", 0x105, rule)));
    assert_eq!(first_error(0xb6, &[15]), Some(field(place, "fc_len", 15, "16, an inode and an extent")));
    assert_eq!(first_error(0xc0, &[0]), Some(field(place, "ee_len", 0, "at least 1")));
    assert_eq!(first_error(0xca, &[8]), Some(field(place, "fc_len", 8, "9 to 263, two inodes and a name")));
    assert_eq!(first_error(0, &[0]), None, "a tag of 0 ends the block");
    let mut block = bytes[..BLOCK].to_vec();
    block[20] ^= 1;
    let crc =
        FastCommitItems::new(&block, 256, 1025).map_while(Result::ok).fold(0, |crc, item| item.checksum(crc));
    assert_ne!(crc, 0xad87_d8bb);
}

fn exercise(block: &[u8]) {
    if let Ok(sb) = JournalSuperblock::parse(block) {
        let _ = (sb.to_string(), sb.verify_checksum(), sb.fast_commits(), sb.users());
    }
    let _ = JournalBlockHeader::read(block).map(|header| header.to_string());
    use JournalChecksums::*;
    for checksums in [None, Commit, V2, V3] {
        for wide in [false, true] {
            let layout = JournalLayout { wide, checksums, seed: ChecksumSeed(1) };
            let _ = JournalTags::parse(block, &layout, 1).map(|tags| tags.to_string());
            let _ = JournalRevokes::parse(block, &layout, 1).map(|revokes| revokes.to_string());
            let _ = JournalCommit::parse(block, &layout, 1).map(|commit| commit.to_string());
            let _ = (JournalCommit::verify_block(block, &layout, 1), layout.verify_tail(block, 1));
        }
    }
    for item in FastCommitItems::new(block, 256, 1).flatten() {
        let _ = (item.record.to_string(), item.checksum(0));
    }
}

proptest! {
    #[test]
    fn random_bytes_are_parsed_or_refused(
        mut bytes in prop::collection::vec(any::<u8>(), 0..1100),
        kind in prop::option::of(0u32..7),
    ) {
        if let (Some(kind), Some(start)) = (kind, bytes.first_chunk_mut::<8>()) {
            *start = (u64::from(JOURNAL_MAGIC) << 32 | u64::from(kind)).to_be_bytes();
        }
        exercise(&bytes);
    }

    #[test]
    fn mutated_blocks_are_parsed_or_refused(edits in prop::collection::vec((0usize..BLOCK, any::<u8>()), 1..6)) {
        let fast = include_bytes!("../../../tests/data/fast_commit_kernel.bin");
        let journals = journals();
        let blocks = journals.iter().flat_map(|journal| journal.bytes.chunks(BLOCK)).chain(fast.chunks(BLOCK));
        for block in blocks {
            let mut block = block.to_vec();
            for &(at, byte) in &edits {
                block[at] = byte;
            }
            exercise(&block);
        }
    }
}
