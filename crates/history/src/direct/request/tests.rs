//! Bios of small requests, traced by hand through both versions of the code in the thread "avoid
//! too many boundaries in DIO".

use super::*;
use crate::direct::Ext3Map;

/// A map that returns a list of mappings.
#[derive(Debug)]
struct Listed(VecDeque<Mapped>);

impl BlockMap for Listed {
    fn map(&mut self, _: u64, most: u64) -> Result<Mapped, FullVolume> {
        let mapped = self.0.pop_front().ok_or(FullVolume)?;
        assert!(mapped.blocks <= most, "a mapping longer than was asked for");
        Ok(mapped)
    }

    fn block_bytes(&self) -> u64 {
        4096
    }
}

/// A map from (volume block, length, boundary) triples.
fn listed(mappings: &[(u64, u64, bool)]) -> Listed {
    let mapped = |&(block, blocks, boundary)| Mapped { block, blocks, boundary, allocated: true };
    Listed(mappings.iter().map(mapped).collect())
}

const K4: Limits = Limits { page_bytes: 4096, block_bytes: 4096, bio_pages: 128 };
const K16: Limits = Limits { page_bytes: 16 << 10, ..K4 };

const ALL: [BoundaryRule; 4] = [
    BoundaryRule::EveryChunk,
    BoundaryRule::FirstChunk,
    BoundaryRule::LastChunkEarly,
    BoundaryRule::LastChunk,
];

fn bios(rule: BoundaryRule, limits: Limits, blocks: u64, map: &mut dyn BlockMap) -> Vec<SentBio> {
    let mut request = Request::new(rule, limits, 0, blocks * limits.block_bytes);
    let mut sent = Vec::new();
    while let Some(event) = request.next(map).unwrap() {
        if let Event::Sent(bio) = event {
            sent.push(bio);
        }
    }
    sent
}

/// Lengths in blocks, with causes.
fn shape(sent: &[SentBio]) -> Vec<(u64, Cause)> {
    sent.iter().map(|bio| (bio.bytes() / 4096, bio.cause)).collect()
}

use Cause::{Boundary, End, Full, Gap};

#[test]
fn as_released_every_page_of_a_marked_mapping_is_a_bio() {
    // Page 0 is held back for page 1; page 1's arrival puts page 0 in a bio, and page 2's arrival
    // sends that.
    let sent = bios(BoundaryRule::EveryChunk, K4, 4, &mut listed(&[(100, 4, true)]));
    // Sending clears the mark, and nothing sets it for the last page.
    assert_eq!(shape(&sent), [(1, Boundary), (1, Boundary), (2, End)]);
    assert_eq!(sent.iter().map(|bio| bio.block).collect::<Vec<_>>(), [100, 101, 102]);
    // The first page of an unmarked mapping clears the mark before the last two pages of the marked
    // one are handled.
    let sent = bios(BoundaryRule::EveryChunk, K4, 7, &mut listed(&[(100, 4, true), (200, 3, false)]));
    assert_eq!(shape(&sent), [(1, Boundary), (1, Boundary), (2, Gap), (3, End)]);
}

#[test]
fn the_first_patch_sends_the_bio_before_the_last_page_of_the_mapping_before() {
    // Page 1 clears the mark, unless the first page of the next mapping sets it.
    let sent = bios(BoundaryRule::FirstChunk, K4, 4, &mut listed(&[(100, 4, true)]));
    assert_eq!(shape(&sent), [(4, End)]);
    let sent = bios(BoundaryRule::FirstChunk, K4, 8, &mut listed(&[(100, 4, true), (200, 4, true)]));
    assert_eq!(shape(&sent), [(3, Boundary), (1, Gap), (4, End)]);
}

#[test]
fn the_last_page_as_the_boundary_sent_too_early_leaves_two_pages_behind() {
    let sent = bios(BoundaryRule::LastChunkEarly, K4, 8, &mut listed(&[(100, 4, true), (200, 4, true)]));
    assert_eq!(shape(&sent), [(2, Boundary), (2, Gap), (2, Boundary), (2, End)]);
}

#[test]
fn the_second_patch_sends_whole_mappings() {
    let sent = bios(BoundaryRule::LastChunk, K4, 8, &mut listed(&[(100, 4, true), (200, 4, true)]));
    assert_eq!(shape(&sent), [(4, Boundary), (4, Boundary)]);
}

#[test]
fn a_boundary_within_a_page_ends_the_page_s_section() {
    // Pages of four blocks; the mapping ends in the middle of the second page.
    let map = || listed(&[(100, 6, true), (200, 2, false)]);
    let sent = bios(BoundaryRule::LastChunk, K16, 8, &mut map());
    assert_eq!(shape(&sent), [(6, Boundary), (2, End)]);
    assert_eq!(sent[0].sections.len(), 2);
    assert_eq!((sent[1].sections[0].page, sent[1].sections[0].offset), (1, 2 * 4096));
    // Page 0, then the first half of page 1, both marked: the half page sends nothing, since there
    // is no bio yet.
    let sent = bios(BoundaryRule::EveryChunk, K16, 8, &mut map());
    assert_eq!(shape(&sent), [(6, Gap), (2, End)]);
}

#[test]
fn a_bio_that_is_full_takes_the_mark_with_it() {
    let limits = Limits { bio_pages: 3, ..K4 };
    let sent = bios(BoundaryRule::LastChunk, limits, 8, &mut listed(&[(100, 4, true), (104, 4, false)]));
    // The section that fills the bio is the boundary. Sending the full bio clears the mark, so the
    // section is not sent by itself.
    assert_eq!(shape(&sent), [(3, Full), (3, Full), (2, End)]);
}

#[test]
fn without_marks_the_rules_are_the_same() {
    for rule in ALL {
        let map = &mut listed(&[(100, 40, false), (140, 24, false), (300, 64, false)]);
        let limits = Limits { bio_pages: 32, ..K4 };
        let sent = bios(rule, limits, 128, map);
        assert_eq!(shape(&sent), [(32, Full), (32, Gap), (32, Full), (32, End)], "{rule:?}");
    }
}

#[test]
fn under_every_rule_each_block_is_sent_once_and_in_order() {
    let mut rng = extant_rt::Rng::new(5);
    for round in 0..200 {
        let page_blocks = 1 << rng.below(5);
        let limits =
            Limits { page_bytes: page_blocks * 4096, block_bytes: 4096, bio_pages: 1 + rng.below(64) };
        let free: Vec<_> = (0..40).map(|n| n * 3000..n * 3000 + 1 + rng.below(2000)).collect();
        let blocks = 1 + rng.below(5000);
        for rule in ALL {
            let (mut map, mut again) = (Ext3Map::new(free.clone(), 4096), Ext3Map::new(free.clone(), 4096));
            let sent = bios(rule, limits, blocks, &mut map);
            let mut at = 0;
            for bio in &sent {
                assert!(bio.sections.len() as u64 <= limits.bio_pages, "round {round}, {rule:?}");
                for n in 0..bio.bytes() / 4096 {
                    let mapped = again.map(at, blocks - at).unwrap();
                    assert_eq!(
                        mapped.block,
                        bio.block + n,
                        "round {round}, {rule:?}, block {at} of {blocks}"
                    );
                    at += 1;
                }
            }
            assert_eq!(at, blocks, "round {round}, {rule:?}");
        }
    }
}
