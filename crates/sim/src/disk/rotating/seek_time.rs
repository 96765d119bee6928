//! How long the arm takes to move over a distance in cylinders.

/// Seek time over distance: `a + b√x + c·x`, with `x` the fraction of the full stroke. Acceleration
/// gives the root, coasting the linear part (Ruemmler and Wilkes, "An introduction to disk drive
/// modeling", IEEE Computer, March 1994). The three published times determine the three
/// coefficients: with uniform start and end, √x averages 8/15 and x 1/3.
#[derive(Clone, Copy, Debug)]
pub(super) struct SeekCurve {
    single_ns: f64,
    root_ns: f64,
    linear_ns: f64,
    stroke: f64,
}

/// Lower bounds of seek times, cheap to look up: indexed by the five leading bits of the distance.
#[derive(Debug)]
pub(super) struct SeekFloors(Vec<u64>);

impl SeekFloors {
    pub(super) fn new(curve: &SeekCurve) -> Self {
        let buckets = 0..32 * 60;
        let shortest = |bucket: u64| {
            if bucket < 64 {
                bucket
            } else {
                (32 + bucket % 32).checked_shl((bucket / 32 - 1) as u32).unwrap_or(0)
            }
        };
        Self(buckets.map(|bucket| curve.ns(shortest(bucket))).collect())
    }

    pub(super) fn at_least_ns(&self, cylinders: u64) -> u64 {
        let shift = cylinders.checked_ilog2().unwrap_or(0).saturating_sub(5);
        self.0[(32 * u64::from(shift) + (cylinders >> shift)) as usize]
    }
}

impl SeekCurve {
    /// `None` if no rising curve fits the three times.
    pub(super) fn fit(single_ns: u64, average_ns: u64, full_ns: u64, cylinders: u64) -> Option<Self> {
        let (single, average, full) = (single_ns as f64, average_ns as f64, full_ns as f64);
        let root = ((average - single) - (full - single) / 3.0) / (8.0 / 15.0 - 1.0 / 3.0);
        let linear = full - single - root;
        let rises = root >= 0.0 && root / 2.0 + linear >= 0.0;
        let stroke = (cylinders.max(3) - 2) as f64;
        rises.then_some(Self { single_ns: single, root_ns: root, linear_ns: linear, stroke })
    }

    pub(super) fn ns(&self, cylinders: u64) -> u64 {
        if cylinders == 0 {
            return 0;
        }
        let x = (cylinders - 1) as f64 / self.stroke;
        (self.single_ns + self.root_ns * x.sqrt() + self.linear_ns * x) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seek_times_are_the_published_ones() {
        let curve = SeekCurve::fit(500_000, 8_000_000, 17_350_000, 100_000).unwrap();
        assert_eq!((curve.ns(0), curve.ns(1), curve.ns(99_999)), (0, 500_000, 17_350_000));
        let n = 1_000;
        let sum: u64 = (0..n)
            .flat_map(|from| (0..n).map(move |to: u64| to.abs_diff(from) * 100))
            .map(|distance| curve.ns(distance))
            .sum();
        let average = sum / (n * n);
        assert!(average.abs_diff(8_000_000) < 40_000, "average {average}");
        assert!(SeekCurve::fit(500_000, 20_000_000, 10_000_000, 100_000).is_none());
    }

    #[test]
    fn looked_up_seeks_are_a_little_short_and_never_long() {
        let curve = SeekCurve::fit(500_000, 8_000_000, 17_350_000, 400_000).unwrap();
        let floors = SeekFloors::new(&curve);
        for distance in (0..1_000).chain((1_000..400_000).step_by(77)) {
            let (floor, exact) = (floors.at_least_ns(distance), curve.ns(distance));
            assert!(floor <= exact && floor * 25 >= exact * 24, "{distance}: {floor} of {exact}");
        }
    }
}
