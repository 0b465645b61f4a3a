"""What it costs that stages, routers and ingresses are processes of their own."""
