"""The daemon's face: metrics, health and a status page over HTTP. It reads; nothing here changes a subscription."""
