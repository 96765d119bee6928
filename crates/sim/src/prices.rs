//! Prices of work: those that a machine's model gives, and the order in which a world looks them up.

use crate::table::{ModelError, Table};
use extant_rt::{Charge, CostTable, Nanos};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// The table `[costs]` of a model: picoseconds per unit, by key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Prices {
    /// No work costs anything.
    Free,
    /// As the model's file has them; the file and the table's line, for errors.
    Listed { file: String, line: usize, picoseconds: BTreeMap<String, u64> },
}

impl Prices {
    /// Reads the table. Which keys there must be is not known here: see [`Prices::missing`].
    pub(crate) fn read(table: Table<'_>) -> Result<Self, ModelError> {
        let (file, line) = table.place();
        Ok(Self::Listed { file, line, picoseconds: table.all_picoseconds()? })
    }

    fn get(&self, key: &str) -> Option<u64> {
        match self {
            Self::Free => Some(0),
            Self::Listed { picoseconds, .. } => picoseconds.get(key).copied(),
        }
    }

    /// The first key of these tables without a price.
    pub(crate) fn missing(&self, tables: &[&CostTable]) -> Option<ModelError> {
        let Self::Listed { file, line, .. } = self else { return None };
        let key = tables.iter().flat_map(|table| table.keys).find(|key| self.get(key).is_none())?;
        let (key, problem) = (format!("costs.{key}"), "missing".to_owned());
        Some(ModelError { file: file.clone(), line: *line, key, problem })
    }
}

/// Most layers that charge.
const LAYERS: usize = 16;

/// A world's prices by layer, in the order in which the layers first charged: found without a lock or a string.
#[derive(Debug)]
pub(crate) struct PriceList {
    prices: Prices,
    layers: [OnceLock<Layer>; LAYERS],
}

/// A layer's kinds of work, and the price of each in picoseconds per unit.
type Layer = (&'static CostTable, Box<[Option<u64>]>);

/// Why a charge has no price.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NoPrice {
    /// The model does not list it.
    Unlisted { layer: &'static str, key: &'static str },
    /// It is beyond counting.
    TooMuch,
}

impl PriceList {
    pub(crate) fn new(prices: Prices) -> Self {
        Self { prices, layers: std::array::from_fn(|_| OnceLock::new()) }
    }

    /// How long this work takes, rounded to the nearest nanosecond.
    pub(crate) fn price(&self, charge: Charge) -> Result<Nanos, NoPrice> {
        let (table, index, units) = match charge {
            Charge::Time(span) => return Ok(span),
            Charge::Units { table, index, units } => (table, index, units),
        };
        let Some(each) = self.layer(table)[index] else {
            return Err(NoPrice::Unlisted { layer: table.layer, key: table.keys[index] });
        };
        let picoseconds = each.checked_mul(units).and_then(|total| total.checked_add(500));
        picoseconds.map(|total| Nanos(total / 1_000)).ok_or(NoPrice::TooMuch)
    }

    fn layer(&self, table: &'static CostTable) -> &[Option<u64>] {
        for slot in &self.layers {
            let list = || (table, table.keys.iter().map(|key| self.prices.get(key)).collect());
            let (listed, prices) = slot.get_or_init(list);
            if std::ptr::eq(*listed, table) {
                return prices;
            }
        }
        panic!("more than {LAYERS} layers charge for work; raise LAYERS");
    }
}
