//! Handles of machines whose ways in take one caller at a time: all that are given out for a machine are one.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use domain::SandboxId;

use crate::DriverError;

/// The handles that are held by anybody.
pub struct Handles<M>(Mutex<HashMap<SandboxId, Weak<M>>>);

impl<M> Default for Handles<M> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<M> fmt::Debug for Handles<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handles")
    }
}

impl<M> Handles<M> {
    /// The one handle of a machine: the one that is held if it is `current`, else what `find` finds.
    ///
    /// # Errors
    /// Those of `find`.
    pub fn get(
        &self,
        id: SandboxId,
        current: impl FnOnce(&M) -> bool,
        find: impl FnOnce() -> Result<Option<M>, DriverError>,
    ) -> Result<Option<Arc<M>>, DriverError> {
        let mut handles = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        handles.retain(|_, handle| handle.strong_count() > 0);
        if let Some(machine) = handles.get(&id).and_then(Weak::upgrade).filter(|machine| current(machine)) {
            return Ok(Some(machine));
        }
        let Some(machine) = find()?.map(Arc::new) else { return Ok(None) };
        handles.insert(id, Arc::downgrade(&machine));
        Ok(Some(machine))
    }
}
