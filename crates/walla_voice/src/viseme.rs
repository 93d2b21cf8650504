//! Shapes of the mouth.

/// A shape of the mouth: the 15 visemes of Oculus Lipsync, in its order, as avatars of VRChat,
/// Ready Player Me and others have them.
///
/// Source: Meta, "Viseme reference", Oculus Lipsync guide.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Viseme {
    /// `sil`: silence.
    #[default]
    Silence,
    /// `PP`: p, b, m.
    Pp,
    /// `FF`: f, v.
    Ff,
    /// `TH`: th.
    Th,
    /// `DD`: t, d.
    Dd,
    /// `kk`: k, g.
    Kk,
    /// `CH`: ch, j, sh.
    Ch,
    /// `SS`: s, z.
    Ss,
    /// `nn`: n, l.
    Nn,
    /// `RR`: r.
    Rr,
    /// `aa`: as in "car".
    Aa,
    /// `E`: as in "bed".
    E,
    /// `I`: as in "tip".
    I,
    /// `O`: as in "toe".
    O,
    /// `U`: as in "book".
    U,
}

impl Viseme {
    /// All visemes, in the order of Oculus Lipsync.
    pub const ALL: [Self; 15] = [
        Self::Silence,
        Self::Pp,
        Self::Ff,
        Self::Th,
        Self::Dd,
        Self::Kk,
        Self::Ch,
        Self::Ss,
        Self::Nn,
        Self::Rr,
        Self::Aa,
        Self::E,
        Self::I,
        Self::O,
        Self::U,
    ];

    /// The name in Oculus Lipsync.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Silence => "sil",
            Self::Pp => "PP",
            Self::Ff => "FF",
            Self::Th => "TH",
            Self::Dd => "DD",
            Self::Kk => "kk",
            Self::Ch => "CH",
            Self::Ss => "SS",
            Self::Nn => "nn",
            Self::Rr => "RR",
            Self::Aa => "aa",
            Self::E => "E",
            Self::I => "ih",
            Self::O => "oh",
            Self::U => "ou",
        }
    }

    /// The viseme of a symbol of the International Phonetic Alphabet before `next`. `None`: the
    /// symbol has none (marks of stress and length, spaces), and the mouth stays. Capital letters
    /// are symbols of misaki: diphthongs, with the viseme of their first half, and the flap `T`.
    #[must_use]
    pub fn of_phoneme(symbol: char, next: Option<char>) -> Option<Self> {
        Some(match symbol {
            'p' | 'b' | 'm' | 'ɓ' | 'ɸ' | 'β' => Self::Pp,
            'f' | 'v' | 'ʋ' | 'ⱱ' | 'ɱ' => Self::Ff,
            'θ' | 'ð' => Self::Th,
            't' | 'd' if matches!(next, Some('ʃ' | 'ʒ')) => Self::Ch,
            't' | 'd' | 'T' | 'ɾ' | 'ʈ' | 'ɖ' | 'ɗ' => Self::Dd,
            'k' | 'ɡ' | 'g' | 'ŋ' | 'x' | 'ɣ' | 'q' | 'ɢ' | 'χ' | 'ʁ' | 'h' | 'ɦ' | 'ħ' | 'c'
            | 'ɟ' | 'ç' => Self::Kk,
            'ʃ' | 'ʒ' | 'ɕ' | 'ʑ' | 'ʂ' | 'ʐ' | 'ʤ' | 'ʧ' | 'ʥ' | 'ʨ' => Self::Ch,
            's' | 'z' | 'ʣ' | 'ʦ' => Self::Ss,
            'n' | 'l' | 'ɲ' | 'ɳ' | 'ɴ' | 'ɫ' | 'ʎ' | 'ɭ' | 'ɬ' => Self::Nn,
            'ɹ' | 'r' | 'ɚ' | 'ɜ' | 'ɝ' | 'ʀ' | 'ɻ' | 'ɽ' => Self::Rr,
            'a' | 'ɑ' | 'æ' | 'ʌ' | 'ɐ' | 'I' | 'W' => Self::Aa,
            'e' | 'ɛ' | 'ə' | 'ᵊ' | 'ɘ' | 'ø' | 'œ' | 'ɵ' | 'A' | 'Q' => Self::E,
            'i' | 'ɪ' | 'ᵻ' | 'ɨ' | 'j' | 'y' | 'ʏ' => Self::I,
            'o' | 'ɔ' | 'ɒ' | 'ɤ' | 'O' | 'Y' => Self::O,
            'u' | 'ʊ' | 'ʉ' | 'ɯ' | 'w' | 'ɥ' => Self::U,
            '.' | ',' | '!' | '?' | ';' | ':' | '^' | '$' | '—' | '…' | '。' | '，' | '、' => {
                Self::Silence
            }
            _ => return None,
        })
    }

    /// Weights of Apple's ARKit face shapes for this viseme, from 0 to 1; shapes that are not named
    /// have 0.
    #[must_use]
    pub const fn arkit(self) -> &'static [(&'static str, f32)] {
        match self {
            Self::Silence => &[],
            Self::Pp => &[
                ("mouthClose", 0.3),
                ("mouthPressLeft", 0.7),
                ("mouthPressRight", 0.7),
                ("mouthRollLower", 0.3),
                ("mouthRollUpper", 0.3),
            ],
            Self::Ff => &[
                ("jawOpen", 0.1),
                ("mouthRollLower", 0.6),
                ("mouthUpperUpLeft", 0.3),
                ("mouthUpperUpRight", 0.3),
            ],
            Self::Th => &[("jawOpen", 0.2), ("tongueOut", 0.4)],
            Self::Dd => &[
                ("jawOpen", 0.2),
                ("mouthLowerDownLeft", 0.3),
                ("mouthLowerDownRight", 0.3),
                ("mouthUpperUpLeft", 0.2),
                ("mouthUpperUpRight", 0.2),
            ],
            Self::Kk => {
                &[("jawOpen", 0.25), ("mouthLowerDownLeft", 0.3), ("mouthLowerDownRight", 0.3)]
            }
            Self::Ch => &[("jawOpen", 0.15), ("mouthFunnel", 0.6), ("mouthPucker", 0.3)],
            Self::Ss => &[
                ("jawOpen", 0.05),
                ("mouthStretchLeft", 0.4),
                ("mouthStretchRight", 0.4),
                ("mouthSmileLeft", 0.2),
                ("mouthSmileRight", 0.2),
            ],
            Self::Nn => {
                &[("jawOpen", 0.2), ("mouthLowerDownLeft", 0.2), ("mouthLowerDownRight", 0.2)]
            }
            Self::Rr => &[("jawOpen", 0.2), ("mouthFunnel", 0.3), ("mouthPucker", 0.3)],
            Self::Aa => {
                &[("jawOpen", 0.7), ("mouthLowerDownLeft", 0.2), ("mouthLowerDownRight", 0.2)]
            }
            Self::E => &[
                ("jawOpen", 0.4),
                ("mouthSmileLeft", 0.3),
                ("mouthSmileRight", 0.3),
                ("mouthStretchLeft", 0.2),
                ("mouthStretchRight", 0.2),
            ],
            Self::I => &[("jawOpen", 0.25), ("mouthSmileLeft", 0.5), ("mouthSmileRight", 0.5)],
            Self::O => &[("jawOpen", 0.5), ("mouthFunnel", 0.6), ("mouthPucker", 0.2)],
            Self::U => &[("jawOpen", 0.25), ("mouthFunnel", 0.4), ("mouthPucker", 0.7)],
        }
    }
}
