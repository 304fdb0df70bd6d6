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
}

pub(super) fn read(layers: &Layers, problems: &mut Vec<Problem>) -> BTreeMap<String, TenantConfig> {
    let mut tenants = BTreeMap::new();
    for (name, (table, place)) in &layers.tenants {
        let path = format!("tenants.{name}");
        let (settings, _) = Settings::read_table(TENANT_KEYS, &[], &path, table, place, problems);
        tenants.insert(name.clone(), TenantConfig { tasks: settings.flag("tasks") });
    }
    tenants
}
