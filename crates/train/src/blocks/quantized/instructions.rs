//! Which instructions integer products are computed with.

/// Instruction sets that there are kernels for, the slowest first.
///
/// Others, such as NEON's dot products and AVX-VNNI, get the portable code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instructions {
    Portable,
    Avx2,
    Avx512Vnni,
}

impl Instructions {
    pub const ALL: [Self; 3] = [Self::Portable, Self::Avx2, Self::Avx512Vnni];

    /// The fastest that this processor has.
    pub fn best() -> Self {
        let here = Self::ALL.into_iter().rfind(|instructions| instructions.is_here());
        here.unwrap_or(Self::Portable)
    }

    /// Whether this processor has them.
    pub fn is_here(self) -> bool {
        match self {
            Self::Portable => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => is_x86_feature_detected!("avx2") && is_x86_feature_detected!("f16c"),
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            Self::Avx2 | Self::Avx512Vnni => false,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable code",
            Self::Avx2 => "AVX2",
            Self::Avx512Vnni => "AVX-512 VNNI",
        }
    }
}
