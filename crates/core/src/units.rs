//! Integers with units. State holds no floats, so equal histories give equal bytes.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub, SubAssign};

macro_rules! amount {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl $name {
            pub const ZERO: Self = Self(0);

            pub fn saturating_sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Add for $name {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0 + other.0)
            }
        }

        impl AddAssign for $name {
            fn add_assign(&mut self, other: Self) {
                self.0 += other.0;
            }
        }

        impl Sub for $name {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0 - other.0)
            }
        }

        impl SubAssign for $name {
            fn sub_assign(&mut self, other: Self) {
                self.0 -= other.0;
            }
        }

        impl Sum for $name {
            fn sum<I: Iterator<Item = Self>>(items: I) -> Self {
                items.fold(Self::ZERO, Add::add)
            }
        }
    };
}

amount!(
    /// A size in bytes.
    Bytes(u64)
);
amount!(
    /// A span of time in milliseconds.
    Millis(u64)
);
amount!(
    /// A part of a device in 1/10,000: a whole accelerator is 10,000, a socket of 8 cores 80,000.
    Share(u32)
);
amount!(
    /// Share × time: what holding a device costs, in (1/10,000 of a device) × milliseconds.
    ShareMillis(u64)
);

/// With the largest binary unit that keeps it readable: `24GiB`, `1.5MiB`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
        let mut value = self.0 as f64;
        let mut unit = 0;
        while value >= 1024.0 && unit + 1 < UNITS.len() {
            value /= 1024.0;
            unit += 1;
        }
        match value.fract() == 0.0 {
            true => write!(f, "{value}{}", UNITS[unit]),
            false => write!(f, "{value:.1}{}", UNITS[unit]),
        }
    }
}

impl Bytes {
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }
}

impl Millis {
    pub const fn seconds(count: u64) -> Self {
        Self(count * 1_000)
    }

    pub fn as_seconds(self) -> f64 {
        self.0 as f64 / 1_000.0
    }
}

impl Share {
    /// One accelerator, or one core of a CPU socket.
    pub const WHOLE: Self = Self(10_000);

    pub const fn units(count: u32) -> Self {
        Self(count * Self::WHOLE.0)
    }

    /// How many whole units fit in this share.
    pub const fn whole_units(self) -> u32 {
        self.0 / Self::WHOLE.0
    }

    pub fn over(self, span: Millis) -> ShareMillis {
        ShareMillis(u64::from(self.0) * span.0)
    }
}

impl ShareMillis {
    /// In device-seconds: one whole device held for one second is 1.0.
    pub fn device_seconds(self) -> f64 {
        self.0 as f64 / f64::from(Share::WHOLE.0) / 1_000.0
    }
}

/// A point in time in milliseconds: since the Unix epoch on real machines, since the scenario's
/// start in a simulation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Time(pub u64);

impl Time {
    pub const ZERO: Self = Self(0);

    /// The span from `earlier` to this instant; zero if `earlier` lies after it.
    pub fn since(self, earlier: Time) -> Millis {
        Millis(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Millis> for Time {
    type Output = Self;
    fn add(self, span: Millis) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

/// A measured value in millionths (a loss of 1.25 is 1,250,000): exact equality in state and log.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Micro(pub i64);

impl Micro {
    pub const ONE: Self = Self(1_000_000);

    /// Rounds to the nearest millionth; `None` for NaN, infinities and values out of range.
    pub fn from_f64(value: f64) -> Option<Self> {
        let scaled = (value * 1e6).round();
        (scaled.is_finite() && scaled.abs() < 9e18).then_some(Self(scaled as i64))
    }

    pub fn as_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
}

impl fmt::Display for Micro {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_f64().fmt(f)
    }
}
