//! `[tenants.NAME]`.

use std::collections::BTreeMap;

use super::keys::TENANT_KEYS;
use super::problem::Problem;
use super::settings::Settings;
use super::sources::Layers;

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TenantConfig {
    /// Whether its calls can be tasks.
    pub tasks: bool,
    /// On all nodes together.
    pub slots: Option<u64>,
    pub queued: Option<u64>,
}

pub(super) fn read(layers: &Layers, problems: &mut Vec<Problem>) -> BTreeMap<String, TenantConfig> {
    let mut tenants = BTreeMap::new();
    for (name, (table, place)) in &layers.tenants {
        let path = format!("tenants.{name}");
        let (settings, _) = Settings::read_table(TENANT_KEYS, &[], &path, table, place, problems);
        let tenant = TenantConfig {
            tasks: settings.flag("tasks"),
            slots: settings.maybe_number("slots"),
            queued: settings.maybe_number("queued"),
        };
        tenants.insert(name.clone(), tenant);
    }
    tenants
}
