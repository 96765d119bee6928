//! The journal.
#![no_main]

use extant_format::ChecksumSeed;
use extant_format::jbd2::*;
use libfuzzer_sys::fuzz_target;

const NUMBER: u32 = 9;

fuzz_target!(|data: &[u8]| {
    if let Ok(sb) = JournalSuperblock::parse(data) {
        let _ = (sb.to_string(), sb.verify_checksum(), sb.users(), sb.errno());
        assert!(!sb.log().is_empty() && sb.fast_commits().end == sb.blocks());
        let mut again = [0; JOURNAL_SUPERBLOCK_BYTES];
        sb.write_to(&mut again);
        assert_eq!(JournalSuperblock::parse(&again).unwrap().start(), sb.start());
        blocks(data, &sb.layout());
    }
    for checksums in
        [JournalChecksums::None, JournalChecksums::Commit, JournalChecksums::V2, JournalChecksums::V3]
    {
        for wide in [false, true] {
            blocks(data, &JournalLayout { wide, checksums, seed: ChecksumSeed(1) });
        }
    }
});

fn blocks(data: &[u8], layout: &JournalLayout) {
    for block in data.chunks(1024) {
        let _ = JournalBlockHeader::read(block).map(|header| header.to_string());
        let _ = (layout.verify_tail(block, NUMBER), JournalCommit::verify_block(block, layout, NUMBER));
        let mut again = [0; 1024];
        if let Ok(tags) = JournalTags::parse(block, layout, NUMBER) {
            let _ = tags.to_string();
            let mut writer = DescriptorWriter::new(&mut again, layout, tags.sequence);
            let fitted: Vec<_> = tags
                .clone()
                .take_while(|tag| writer.push(tag.block, tag.flags.contains(TagFlags::ESCAPE), b""))
                .map(|tag| tag.block)
                .collect();
            writer.finish();
            layout.verify_tail(&again, NUMBER).unwrap();
            let read = JournalTags::parse(&again, layout, NUMBER).unwrap();
            if !fitted.is_empty() {
                assert!(read.map(|tag| tag.block).eq(fitted));
            }
        }
        if let Ok(revokes) = JournalRevokes::parse(block, layout, NUMBER) {
            let _ = revokes.to_string();
            let mut writer = RevokeWriter::new(&mut again, layout, revokes.sequence);
            let fitted: Vec<_> = revokes.clone().take_while(|&block| writer.push(block)).collect();
            writer.finish();
            assert!(JournalRevokes::parse(&again, layout, NUMBER).unwrap().eq(fitted));
        }
        if let Ok(commit) = JournalCommit::parse(block, layout, NUMBER) {
            let _ = (commit.to_string(), commit.verify_transaction(7, NUMBER));
            commit.write_to(&mut again, layout);
            assert_eq!(JournalCommit::parse(&again, layout, NUMBER), Ok(commit));
            JournalCommit::verify_block(&again, layout, NUMBER).unwrap();
        }
        for item in FastCommitItems::new(block, 256, NUMBER).flatten() {
            let _ = (item.record.to_string(), item.checksum(0));
        }
    }
}
