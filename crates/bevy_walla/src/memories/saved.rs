//! Serde's traits for [`AgentMemory`] and [`Lore`].

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use walla_memory::{Memory, SavedStore, StoreLimits};

use super::{AgentMemory, Lore};

impl Serialize for AgentMemory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.save().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for AgentMemory {
    /// With the default limits: [`Memory::load`] has others.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let saved = SavedStore::deserialize(deserializer)?;
        Memory::load(&saved, StoreLimits::default()).map(Self).map_err(D::Error::custom)
    }
}

impl Serialize for Lore {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.save().serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Lore {
    /// With the [limits of lore](StoreLimits::lore).
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let saved = SavedStore::deserialize(deserializer)?;
        Memory::load(&saved, StoreLimits::lore()).map(Self).map_err(D::Error::custom)
    }
}
