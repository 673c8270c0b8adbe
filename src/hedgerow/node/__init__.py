"""The asyncio shell: sockets, TLS, WebSocket, HTTP, files and the store, around the machines."""
