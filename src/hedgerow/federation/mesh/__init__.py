"""Federation: autonomous brokers become one, by meshes around those that have subscribers."""
