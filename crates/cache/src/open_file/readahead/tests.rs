use super::*;
use std::collections::BTreeSet;

const END: u64 = 1 << 20;

/// A reader over a cache that keeps everything; counts its misses.
struct Reader {
    ahead: ReadAhead,
    cached: BTreeSet<u64>,
    marks: BTreeSet<u64>,
    misses: u64,
    read_ahead: u64,
}

impl Reader {
    fn new() -> Self {
        Self {
            ahead: ReadAhead::new(256),
            cached: BTreeSet::new(),
            marks: BTreeSet::new(),
            misses: 0,
            read_ahead: 0,
        }
    }

    fn carry_out(&mut self, plan: Plan) {
        for run in plan.ahead {
            assert!(run.end <= END && !run.is_empty());
            self.read_ahead += run.end - run.start;
            self.cached.extend(run);
        }
        self.marks.extend(plan.mark);
    }

    fn read(&mut self, pages: Range<u64>) {
        for page in pages.clone() {
            if !self.cached.contains(&page) {
                self.misses += 1;
                let plan = self.ahead.missed(page..pages.end, END);
                self.cached.extend(page..pages.end);
                self.carry_out(plan);
            } else if self.marks.remove(&page) {
                let plan = self.ahead.marked(page, END);
                self.carry_out(plan);
            }
        }
    }
}

#[test]
fn a_sequential_reader_misses_once() {
    let mut reader = Reader::new();
    (0..10_000).for_each(|page| reader.read(page..page + 1));
    assert_eq!(reader.misses, 1);
    assert!(reader.read_ahead < 10_000 + 3 * 256, "not far past the reader: {}", reader.read_ahead);
}

#[test]
fn a_sequential_reader_in_the_middle_of_a_file_misses_twice() {
    let mut reader = Reader::new();
    (5_000..9_000).for_each(|page| reader.read(page..page + 1));
    assert_eq!(reader.misses, 2);
}

#[test]
fn a_backward_reader_is_followed() {
    let mut reader = Reader::new();
    (5_000..9_000).rev().for_each(|page| reader.read(page..page + 1));
    assert_eq!(reader.misses, 2);
}

#[test]
fn a_strided_reader_is_followed_and_nothing_between_is_read() {
    let mut reader = Reader::new();
    (0..500).for_each(|n| reader.read(7_000 + n * 33..7_002 + n * 33));
    assert_eq!(reader.misses, 3);
    assert!(reader.read_ahead <= 2 * (500 + 3 * 256));
    assert!(!reader.cached.contains(&7_020));
}

#[test]
fn interleaved_streams_do_not_disturb_each_other() {
    let mut reader = Reader::new();
    for n in 0..2_000 {
        for stream in 0..6 {
            let page = 10_000 + stream * 100_000 + n;
            reader.read(page..page + 1);
        }
    }
    assert_eq!(reader.misses, 12);
}

#[test]
fn a_random_reader_gets_little_read_ahead() {
    let mut reader = Reader::new();
    let mut x = 88_172_645_463_325_252_u64;
    for _ in 0..1_000 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let page = x % END;
        reader.read(page..page + 1);
    }
    assert!(reader.read_ahead < 100, "{}", reader.read_ahead);
}

#[test]
fn the_window_shrinks_when_pages_are_evicted_before_use() {
    let mut ahead = ReadAhead::new(256);
    let len = |plan: &Plan| plan.ahead.iter().map(|run| run.end - run.start).sum::<u64>();
    let mut plan = ahead.missed(0..64, END);
    assert_eq!(len(&plan), 256);
    for _ in 0..3 {
        let before = len(&plan);
        let lost = plan.ahead[0].start;
        plan = ahead.missed(lost..lost + 1, END);
        assert!(len(&plan) <= before / 2, "{plan:?} after {before}");
    }
}

#[test]
fn nothing_is_read_past_the_end() {
    let plan = ReadAhead::new(256).missed(0..4, 10);
    assert_eq!((plan.ahead.len(), plan.ahead[0].clone()), (1, 4..10));
    assert_eq!(ReadAhead::new(256).missed(0..10, 10), Plan::default());
}

#[test]
fn it_can_be_turned_off() {
    assert_eq!(ReadAhead::new(0).missed(0..4, 100), Plan::default());
}
