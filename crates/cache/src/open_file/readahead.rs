//! Decides which pages to read ahead: a pure state machine, one for each open file.
//!
//! It is notified of misses and of marks (pages for which it asked to be notified). It is not
//! notified of hits, so that cached reads cost nothing. It follows several streams at a time, each
//! forward, backward or strided. A stream's window doubles while its guesses are used, as in
//! Linux's on-demand read-ahead (Wu et al., "On the design of a new Linux readahead framework",
//! 2008), and halves when pages were evicted before use.

use std::ops::Range;

/// Streams followed at a time per open file.
const STREAMS: usize = 8;
/// A new stream's window, as a multiple of its first request.
const FIRST_WINDOW: u64 = 4;
/// The largest stride detected, in pages.
const STRIDE_MAX: u64 = 4096;
/// How many requests at the same distance confirm a stride.
const STRIDE_CONFIRMED: u8 = 2;

/// Pages to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Runs of pages to read ahead, in order of need.
    pub ahead: Vec<Range<u64>>,
    /// The page whose reader calls [`ReadAhead::marked`].
    pub mark: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// Unknown: seen once.
    Unknown,
    Forward,
    Backward,
    /// The distance between the starts of consecutive requests, and how often it has been seen.
    Stride(i64, u8),
}

#[derive(Clone, Debug)]
struct Stream {
    /// The last request.
    last: Range<u64>,
    way: Way,
    /// How far to stay ahead, in pages (in requests, for strides).
    window: u64,
    /// How far it has read ahead: the end if forward, the start if backward, the start of the last
    /// request if strided.
    edge: u64,
    mark: Option<u64>,
    used: u64,
}

/// The read-ahead state of one open file.
#[derive(Clone, Debug)]
pub struct ReadAhead {
    streams: Vec<Stream>,
    max_pages: u64,
    clock: u64,
}

impl ReadAhead {
    /// Windows are at most `max_pages`; 0 turns read-ahead off.
    pub fn new(max_pages: u64) -> Self {
        Self { streams: Vec::new(), max_pages, clock: 0 }
    }

    /// A reader asked for `pages` of a file of `end` pages, and the first of them was missing.
    pub fn missed(&mut self, pages: Range<u64>, end: u64) -> Plan {
        if self.max_pages == 0 {
            return Plan::default();
        }
        self.clock += 1;
        let (clock, max) = (self.clock, self.max_pages);
        let first_window = ((pages.end - pages.start) * FIRST_WINDOW).next_power_of_two().min(max);
        let Some(stream) = self.matching(&pages) else {
            // A file read from its start is usually read to its end.
            let way = if pages.start == 0 { Way::Forward } else { Way::Unknown };
            let edge = pages.end;
            let mut stream = Stream { last: pages, way, window: first_window, edge, mark: None, used: clock };
            let plan = if way == Way::Forward { stream.go_on(end) } else { Plan::default() };
            self.insert(stream);
            return plan;
        };
        stream.used = clock;
        let distance = pages.start as i64 - stream.last.start as i64;
        let was_ahead = stream.was_read_ahead(&pages);
        stream.way = match stream.way {
            Way::Forward if pages.start >= stream.last.start => Way::Forward,
            _ if pages.start == stream.last.end => Way::Forward,
            _ if pages.end == stream.last.start => Way::Backward,
            Way::Stride(stride, n) if stride == distance => Way::Stride(stride, n.saturating_add(1)),
            Way::Backward if pages.end <= stream.last.end => Way::Backward,
            _ => Way::Stride(distance, 1),
        };
        if was_ahead {
            // The page was read ahead but evicted before use: the window is too large for this
            // cache.
            stream.window = (stream.window / 2).max(1);
        } else if stream.window < first_window {
            stream.window = first_window;
        }
        stream.edge = match stream.way {
            Way::Backward | Way::Stride(..) => pages.start,
            _ => pages.end,
        };
        stream.last = pages;
        stream.window = stream.window.min(max);
        match stream.way {
            Way::Stride(_, n) if n < STRIDE_CONFIRMED => Plan::default(),
            _ => stream.go_on(end),
        }
    }

    /// A reader reached the page named by [`Plan::mark`]: continue its stream.
    pub fn marked(&mut self, page: u64, end: u64) -> Plan {
        self.clock += 1;
        let (clock, max) = (self.clock, self.max_pages);
        let Some(stream) = self.streams.iter_mut().find(|s| s.mark == Some(page)) else {
            return Plan::default();
        };
        stream.used = clock;
        stream.window = (stream.window * 2).min(max);
        let len = stream.last.end - stream.last.start;
        stream.last = page..page + len;
        stream.go_on(end)
    }

    fn insert(&mut self, stream: Stream) {
        if self.streams.len() < STREAMS {
            self.streams.push(stream);
            return;
        }
        let oldest = self.streams.iter_mut().min_by_key(|s| s.used).expect("there are streams");
        *oldest = stream;
    }

    /// Finds the stream a request belongs to: one that it continues, else one with which it may
    /// form a stride.
    fn matching(&mut self, pages: &Range<u64>) -> Option<&mut Stream> {
        let rank = |stream: &Stream| {
            let distance = pages.start as i64 - stream.last.start as i64;
            let continues = pages.start == stream.last.end
                || pages.end == stream.last.start
                || matches!(stream.way, Way::Stride(stride, _) if stride == distance)
                || stream.was_read_ahead(pages);
            let near = matches!(stream.way, Way::Unknown | Way::Stride(_, 1))
                && distance != 0
                && distance.unsigned_abs() <= STRIDE_MAX;
            match (continues, near) {
                (true, _) => Some((0, 0)),
                (false, true) => Some((1, u64::MAX - stream.used)),
                (false, false) => None,
            }
        };
        let (_, index) = self.streams.iter().enumerate().filter_map(|(i, s)| Some((rank(s)?, i))).min()?;
        Some(&mut self.streams[index])
    }
}

impl Stream {
    /// Whether this stream has already read ahead over the start of the request.
    fn was_read_ahead(&self, pages: &Range<u64>) -> bool {
        match self.way {
            Way::Forward => (self.last.end..self.edge).contains(&pages.start),
            Way::Backward => (self.edge..self.last.start).contains(&pages.start),
            Way::Unknown | Way::Stride(..) => false,
        }
    }

    /// The next window, marked at its beginning.
    fn go_on(&mut self, end: u64) -> Plan {
        match self.way {
            Way::Unknown => Plan::default(),
            Way::Forward => {
                let ahead = self.edge.min(end)..self.edge.saturating_add(self.window).min(end);
                self.edge = self.edge.max(ahead.end);
                self.mark = (!ahead.is_empty()).then_some(ahead.start);
                Plan { mark: self.mark, ahead: Vec::from_iter((!ahead.is_empty()).then_some(ahead)) }
            }
            Way::Backward => {
                let ahead = self.edge.saturating_sub(self.window)..self.edge;
                self.edge = ahead.start;
                self.mark = ahead.end.checked_sub(1).filter(|_| !ahead.is_empty());
                Plan { mark: self.mark, ahead: Vec::from_iter((!ahead.is_empty()).then_some(ahead)) }
            }
            Way::Stride(stride, _) => {
                let len = self.last.end - self.last.start;
                let mut ahead = Vec::new();
                let mut left = self.window;
                while left > 0 {
                    let Some(start) = self.edge.checked_add_signed(stride).filter(|&start| start < end)
                    else {
                        break;
                    };
                    ahead.push(start..(start + len).min(end));
                    self.edge = start;
                    left = left.saturating_sub(len);
                }
                self.mark = ahead.first().map(|run| run.start);
                Plan { ahead, mark: self.mark }
            }
        }
    }
}

#[cfg(test)]
mod tests;
