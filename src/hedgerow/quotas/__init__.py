"""How much clients, users and listeners may publish, in messages and bytes a second."""
